#!/bin/sh
# Check that the walks of docs/architecture.md name functions that exist, in the right files. In the
# numbered steps of a section "The walk of ...", a word in backquotes is one of these:
#   a file (path/name.c). After a step has named the full path, the last part of the path suffices;
#   a function (lower case). A file in parentheses or after "in" defines the function before it;
#     any other function is defined in a file that its step names;
#   anything else (an option, a type, a constant), which is not checked.
# The same rules apply to the rows of a table that begin with a function and name a file. Of the
# functions and tables that a step or a row names in a file, at least one must be used by another
# file of the walk, or by another file that the same step names: otherwise no call could lead to
# this file. The first step of a walk is exempt from this rule. A walk has at most ten steps, and
# each step begins with another file. If the walk returns to a file, the step that begins with this
# file describes both visits.
page=docs/architecture.md
[ -f "$page" ] || exit 0
awk '
function finding(text) { print FILENAME ":" begin ": " text; bad = 1 }
function path_of(name) {
	if (name ~ /\//)
		full[substr(name, match(name, /[^\/]*$/))] = name
	else if (name in full)
		name = full[name]
	return name
}
# Returns 1 if a line of the file begins a definition of the function, 0 if none does, and -1 if the
# file does not exist.
function defines(file, name,   line, found, status) {
	found = 0
	while ((status = (getline line <file)) > 0)
		if (line ~ "^[A-Za-z].*[ *]" name "(\\(|( = |\\[).*\\{)")
			found = 1
	close(file)
	return status < 0 ? -1 : found
}
# Returns 1 if a line of the file other than a comment has this name.
function uses(file, name,   line, found) {
	found = 0
	while ((getline line <file) > 0)
		if (line !~ /^[\t ]*(\/?\*|#include)/ && line ~ "(^|[^A-Za-z0-9_])" name "([^A-Za-z0-9_]|$)")
			found = 1
	close(file)
	return found
}
# Record that a step or a row begins with this file. check_uses() later checks that another file
# uses what the step names in this file.
function note_place(file,   i, key) {
	if (file == "")
		return
	key = ++places
	place_file[key] = file
	place_line[key] = begin
	place_names[key] = ""
	for (i = 1; i <= n_words; i++)
		if (defines(file, words[i]) > 0)
			place_names[key] = place_names[key] " " words[i]
	for (i = 1; i <= n_files; i++)
		in_walk[named[i]] = 1
}
# Check at the end of a walk that each place, except the first one, is used.
function check_uses(   k, i, n, list, file, found) {
	for (k = 2; k <= places; k++) {
		found = 0
		n = split(place_names[k], list, " ")
		for (i = 1; i <= n && !found; i++)
			for (file in in_walk)
				if (file != place_file[k] && uses(file, list[i]))
					found = 1
		if (!found) {
			begin = place_line[k]
			finding("no other file of " walk " uses" (n ? place_names[k] : " a function that this line names in") " (" place_file[k] ")")
		}
	}
	places = 0
	delete in_walk
}
function check(name, file) {
	if (!defines(file, name))
		finding(file " does not define " name)
}
function check_any(name,   i) {
	for (i = 1; i <= n_files; i++)
		if (defines(named[i], name) > 0)
			return
	finding("no file of this step defines " name)
}
# Check one step: the text from its number to the next number.
function step(   rest, word, before, pending, i) {
	n_files = n_names = n_words = 0
	pending = ""
	for (rest = text; match(rest, /`[^`]*`/);) {
		word = substr(rest, RSTART + 1, RLENGTH - 2)
		before = substr(rest, 1, RSTART - 1)
		rest = substr(rest, RSTART + RLENGTH)
		if (word ~ /\.(c|cu)$/) {
			named[++n_files] = path_of(word)
			if (defines(named[n_files], "x") < 0)
				finding("there is no file " named[n_files])
			if (pending != "" && before ~ /^ (\(|in )$/) {
				check(pending, named[n_files])
				pending = ""
			} else if (!row && n_files == 1) {
				enter(named[1])
			}
		} else {
			if (pending != "")
				name[++n_names] = pending
			if (word ~ /^[a-z][a-z0-9_]*$/)
				words[++n_words] = word
			pending = word ~ /^[a-z][a-z0-9_]*$/ ? word : ""
		}
	}
	if (pending != "")
		name[++n_names] = pending
	for (i = 1; i <= n_names && (n_files > 0 || !row); i++)
		check_any(name[i])
	if (n_files > 0)
		note_place(named[1])
	text = ""
}
function enter(file) {
	if (file in entered)
		finding(walk " enters " file " twice")
	entered[file] = 1
	if (++files > 10)
		finding(walk " has more than ten files")
}
/^## / { step(); check_uses(); walk = /^## The walk of / ? "the" substr($0, 7) : ""; files = 0; delete entered; next }
walk == "" { next }
/^[0-9]+\. / { step(); text = $0; begin = FNR; next }
/^\| `/ { step(); text = $0; begin = FNR; row = 1; step(); row = 0; next }
/^   / && text != "" { text = text " " $0; gsub(/ +/, " ", text); next }
{ step() }
END { step(); check_uses(); exit bad }
' "$page"
