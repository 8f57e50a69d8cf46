#!/bin/sh
# Write a page as a C array named NAME: embed.sh NAME PAGE CSS LIBRARY SCRIPT... The script replaces
# the lines @CSS@, @LIBRARY@ and @SCRIPT@ of PAGE by the contents of these files.
set -eu
name=$1 page=$2 css=$3 library=$4
shift 4
echo "/* made by server/monitor/page/embed.sh */"
echo "static const unsigned char $name[] = {"
while IFS= read -r line; do
	case $line in
	@CSS@) cat "$css" ;;
	@LIBRARY@) cat "$library" ;;
	@SCRIPT@) cat "$@" ;;
	*) printf '%s\n' "$line" ;;
	esac
done <"$page" | od -An -v -tu1 | sed 's/ *\([0-9][0-9]*\)/\1,/g'
echo "};"
