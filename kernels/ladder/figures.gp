# figures.gp - the figures of docs/ladder.md from the CSV that run.sh measures.
#   gnuplot -e "dir='docs/ladder'" kernels/ladder/figures.gp
# Stages come in the order of steps.csv: from the foot of the ladder to its top.

set encoding utf8
set datafile separator ","
ink = "#24292f"
grey = "#57606a"
set border 3 linecolor rgb grey
set tics nomirror textcolor rgb ink
set title font ",15" textcolor rgb ink offset 0,0.3
set key textcolor rgb ink
set xlabel textcolor rgb grey
set ylabel textcolor rgb grey
set grid linecolor rgb "#d8dee4" linewidth 1
set palette defined (0 "#440154", 1 "#414487", 2 "#2a788e", 3 "#22a884", 4 "#7ad151", 5 "#e0b400")
unset colorbox
file(name) = sprintf("%s/%s.csv", dir, name)
page(name, width, height) = sprintf("set terminal svg size %d,%d dynamic enhanced font 'DejaVu Sans,13' background '#ffffff'; set output '%s/%s.svg'", width, height, dir, name)
duration(ms) = ms >= 1000 ? sprintf("%.2f s", ms / 1000) : ms >= 10 ? sprintf("%.0f ms", ms) : sprintf("%.2f ms", ms)
times(x) = x >= 9.95 ? sprintf("%.0f", x) : sprintf("%.1f", x)
set style fill solid 1 noborder
decades = "('0.01 ms' 0.01, '0.1 ms' 0.1, '1 ms' 1, '10 ms' 10, '100 ms' 100, '1 s' 1000, '10 s' 10000, '100 s' 100000)"

# ---- steps.svg: a bar for each stage, and how many times faster than NumPy ---------------------------
bars = sprintf("< awk -F, '$2 == 256 && $3 == 1000 { if (!base) base = $5; print n++ \",\" $1 \",\" $5 \",\" base / $5 \",\" $13 \",\" $14 }' %s", file("steps"))
stats bars using 3 nooutput
stages = STATS_records
low = STATS_min / 3
set cbrange [0:stages - 1]
eval page("steps", 900, 100 + 34 * stages)
set title "seed:256, 1000 images: time of a step, and times faster than NumPy"
set logscale x
set xrange [low:STATS_max * 12]
set yrange [stages - 0.4:-0.6]
eval "set xtics ".decades
set ytics scale 0
unset grid
set grid xtics
unset key
plot bars using 3:1:(low):3:($1 - 0.36):($1 + 0.36):1:ytic(2) with boxxyerror linecolor palette, \
     bars using 3:1:5:6 with xerrorbars linecolor rgb ink linewidth 1 pointtype 0, \
     bars using 6:1:(sprintf("  %s   {/:Bold %s×}", duration($3), times($4))) with labels left font ",12" textcolor rgb ink

# ---- sweep.svg: time against batch, and against filters ---------------------------------------------
names = system(sprintf("awk -F, 'NR > 1 && !seen[$1]++ { gsub(/ /, \"_\", $1); print $1 }' %s", file("steps")))
name(i) = system(sprintf("echo %s | tr _ ' '", word(names, i)))
sweep(i, x, fixed, value) = sprintf("< awk -F, '$1 == \"%s\" && $%d == %d { print $%d \",\" $5 }' %s | sort -n", name(i), fixed, value, x, file("steps"))
mark(i) = int(word("7 6 5 4 9 8 11 10 13 12", (i - 1) % 10 + 1))
eval page("sweep", 1100, 660)
set multiplot
set lmargin at screen 0.075
set rmargin at screen 0.40
set tmargin at screen 0.88
set bmargin at screen 0.13
set autoscale x
set yrange [low * 0.3:STATS_max * 2]
set logscale xy
unset grid
set grid ytics xtics
eval "set ytics scale 1 ".decades
set title "Time of a step at 256 filters, by batch"
set xlabel "images in a batch"
set xrange [90:1110]
set xtics (100, 250, 500, 1000)
plot for [i = 1:words(names)] sweep(i, 3, 2, 256) using 1:2:(i - 1) with linespoints linecolor palette linewidth 2 pointtype mark(i) pointsize 0.7
set lmargin at screen 0.455
set rmargin at screen 0.78
set title "Time of a step with 1000 images, by filters"
set xlabel "filters"
set xrange [29:282]
set xtics (32, 64, 128, 256)
set format y ""
set key at screen 0.985, screen 0.9 right top Left reverse maxcols 1 samplen 2 spacing 1.2 noenhanced
plot for [i = 1:words(names)] sweep(i, 2, 3, 1000) using 1:2:(i - 1) with linespoints linecolor palette linewidth 2 pointtype mark(i) pointsize 0.7 title name(i)
unset multiplot
set format y
set lmargin; set rmargin; set tmargin; set bmargin

# ---- phases.svg: share of a step's time, phase by phase ----------------------------------------------
# Copies are warm, the host is grey, kernels are cool; phases that are not known here get their own.
known = "weights_in images_in indices_in gradients_out gather sum_on_the_host copies_and_waits all one_thread_per_image conv_+_ReLU_+_pool forward fc softmax_+_loss fc_backward conv_backward backward gradient sum_of_the_slots mean other"
colors = "#f6a15b #d9722e #f3c99b #b5442c #d0d7de #8c959f #eadfd3 #6e7781 #1b1f6b #35479e #5b6fd6 #3a7fc1 #9ad0f5 #2f9c95 #1d6f5e #2aa876 #86cf8f #8f7cc8 #c3b6e8 #b7c0c9"
more = "#5b8def #7bc8a4 #b58ee0 #4b5fa8 #6fd0d6 #a3c9a8 #9d8fd0 #38618c"
rows_of = "$2 == 256 && $3 == 1000 && $1 != \"local\" && $1 != \"bf16\""
used = system(sprintf("awk -F, -v known='%s' '%s { gsub(/ /, \"_\", $5); if (!seen[$5]++) name[++n] = $5 } END { m = split(known, k, \" \"); for (i = 1; i <= m; i++) { is[k[i]] = 1; if (seen[k[i]]) print k[i] } for (i = 1; i <= n; i++) if (!(name[i] in is)) print name[i] }' %s", known, rows_of, file("phases")))
at(list, x) = sum [j = 1:words(list)] (word(list, j) eq x ? j : 0)
nth_new(i) = sum [j = 1:i] (at(known, word(used, j)) == 0)
color(i) = at(known, word(used, i)) ? word(colors, at(known, word(used, i))) : word(more, (nth_new(i) - 1) % words(more) + 1)
phase(i) = system(sprintf("echo '%s' | tr _ ' '", word(used, i)))
# number of a stage, where its phase begins and ends in percent, which phase, the stage, its time
shares = sprintf("< awk -F, -v used='%s' 'BEGIN { n = split(used, u, \" \"); for (i = 1; i <= n; i++) number[u[i]] = i } %s { gsub(/ /, \"_\", $5); if (!($1 in row)) { row[$1] = rows++; name[row[$1]] = $1 } ms[row[$1], number[$5]] += $6; sum[row[$1]] += $6 } END { for (r = 0; r < rows; r++) { at = 0; for (p = 1; p <= n; p++) if (ms[r, p]) { share = 100 * ms[r, p] / sum[r]; print r \",\" at \",\" at + share \",\" p \",\" name[r] \",\" sum[r]; at += share } } }' %s", used, rows_of, file("phases"))
set autoscale
unset logscale
stats shares using 1 nooutput
rows = STATS_max + 1
eval page("phases", 1100, rows > 12 ? 180 + 34 * rows : 540)
unset logscale
set title "seed:256, 1000 images: where the time of a step goes"
set xrange [0:112]
set yrange [rows - 0.4:-0.6]
set xtics 0,20,100
set format x "%g %%"
set ytics nomirror textcolor rgb ink scale 0 ()
unset grid
set xlabel "share of the time, phase by phase"
set key outside right top Left reverse maxrows 32 maxcols 1 samplen 1.2 spacing 1.05 noenhanced font ',12'
set rmargin 26
plot for [i = 1:words(used)] shares using ($4 == i ? $2 : NaN):1:2:3:($1 - 0.38):($1 + 0.38) with boxxyerror linecolor rgb color(i) title phase(i), \
     shares using (0):1:(0):(0):1:1:ytic(5) with boxxyerror linecolor rgb "#ffffff" notitle, \
     shares using (101):($2 == 0 ? $1 : NaN):(duration($6)) with labels left font ",12" textcolor rgb grey notitle
set format x
set rmargin

# ---- cores.svg: the CPU kernels of workers on several threads ----------------------------------------
threads(batch) = sprintf("< awk -F, '$3 == %d { if (!first) first = $5; print $1 \",\" $5 \",\" $6 \",\" $7 \",\" first / $1 }' %s", batch, file("cores"))
eval page("cores", 640, 420)
set autoscale
set logscale x 2
set logscale y 10
set xrange [0.9:20]
set yrange [*:*]
set xtics nomirror (1, 2, 4, 8, 16, 32, 64, 128)
eval "set ytics nomirror scale 1 ".decades
set grid
set title "seed:256 on the CPU: time of a step, by threads"
set xlabel "threads"
set key inside top right Left reverse samplen 2 spacing 1.25
plot threads(1000) using 1:2:3:4 with yerrorlines linewidth 2 pointtype 7 pointsize 0.6 linecolor rgb "#35479e" title "1000 images", \
     threads(1000) using 1:5 with lines dashtype 3 linecolor rgb grey title "the time of one thread, divided", \
     threads(100) using 1:2:3:4 with yerrorlines linewidth 2 pointtype 7 pointsize 0.6 linecolor rgb "#2aa876" title "100 images", \
     threads(100) using 1:5 with lines dashtype 3 linecolor rgb grey notitle
unset logscale
set autoscale

# ---- memory.svg: copies between host and device -------------------------------------------------------
loads = int(system(sprintf("cat %s 2>/dev/null | grep -c host", file("memory"))))
if (loads > 0) {
	copies(what, where, column) = sprintf("< awk -F, '$1 == \"%s\" && $2 == \"%s\" { print $3 \",\" $%d }' %s", what, where, column, file("memory"))
	bytes = "('4 B' 4, '64 B' 64, '1 KiB' 1024, '16 KiB' 16384, '256 KiB' 262144, '4 MiB' 4194304, '64 MiB' 67108864)"
	eval page("memory", 1100, 460)
	set multiplot
	set autoscale y
	set logscale x 2
	set logscale y 10
	set xrange [3:1e8]
	eval "set xtics ".bytes
	set grid
	set tmargin at screen 0.88
	set bmargin at screen 0.13
	set lmargin at screen 0.075
	set rmargin at screen 0.48
	set title "Time of a copy that is waited for"
	set xlabel "size"
	set ytics nomirror scale 1 ('5 µs' 5, '10 µs' 10, '100 µs' 100, '1 ms' 1000, '4 ms' 4000)
	set key inside top left Left reverse samplen 2 spacing 1.25
	plot copies("host to device", "pageable", 4) with linespoints linewidth 2 pointtype 7 pointsize 0.5 linecolor rgb "#d9722e" title "to the device, pageable", \
	     copies("device to host", "pageable", 4) with linespoints linewidth 2 pointtype 6 pointsize 0.5 linecolor rgb "#f6a15b" title "from the device, pageable", \
	     copies("host to device", "pinned", 4) with linespoints linewidth 2 pointtype 7 pointsize 0.5 linecolor rgb "#35479e" title "to the device, pinned", \
	     copies("device to host", "pinned", 4) with linespoints linewidth 2 pointtype 6 pointsize 0.5 linecolor rgb "#3a9fd1" title "from the device, pinned"
	set lmargin at screen 0.56
	set rmargin at screen 0.97
	set title "Bytes in a second"
	set ytics nomirror scale 1 ('1 MB/s' 0.001, '10 MB/s' 0.01, '100 MB/s' 0.1, '1 GB/s' 1, '10 GB/s' 10, '50 GB/s' 50)
	set key off
	plot copies("host to device", "pageable", 5) with linespoints linewidth 2 pointtype 7 pointsize 0.5 linecolor rgb "#d9722e", \
	     copies("device to host", "pageable", 5) with linespoints linewidth 2 pointtype 6 pointsize 0.5 linecolor rgb "#f6a15b", \
	     copies("host to device", "pinned", 5) with linespoints linewidth 2 pointtype 7 pointsize 0.5 linecolor rgb "#35479e", \
	     copies("device to host", "pinned", 5) with linespoints linewidth 2 pointtype 6 pointsize 0.5 linecolor rgb "#3a9fd1"
	unset multiplot
}
