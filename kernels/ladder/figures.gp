# figures.gp - the figures of docs/ladder.md from the CSV that run.sh measures.
#   gnuplot -e "dir='docs/ladder'" kernels/ladder/figures.gp
# The stages are in the order of steps.csv, the simplest one first. The titles are computed from the
# measurements.

load ARG0[1:strlen(ARG0) - strlen("kernels/ladder/figures.gp")]."docs/figures.gp"
set datafile separator ","
file(name) = sprintf("%s/%s.csv", dir, name)
page(name, width, height) = figure(sprintf("%s/%s.svg", dir, name), width, height)
machine = system(sprintf("cat %s/machine.txt", dir))
cpu = system(sprintf("sed 's/^one NVIDIA [^,]*, //' %s/machine.txt", dir))
duration(ms) = ms >= 1000 ? sprintf("%.2f s", ms / 1000) : ms >= 10 ? sprintf("%.0f ms", ms) : sprintf("%.2f ms", ms)
times(x) = x >= 9.95 ? sprintf("%.0f", x) : sprintf("%.1f", x)
decades = "('0.01 ms' 0.01, '0.1 ms' 0.1, '1 ms' 1, '10 ms' 10, '100 ms' 100, '1 s' 1000, '10 s' 10000, '100 s' 100000)"
step(stage, filters, batch) = real(system(sprintf("awk -F, '$1 == \"%s\" && $2 == %d && $3 == %d { print $5 }' %s", stage, filters, batch, file("steps"))))

# ---- steps.svg: a dot for each stage, and how many times faster than NumPy ---------------------------
dots = sprintf("< awk -F, '$2 == 256 && $3 == 1000 { if (!base) base = $5; print n++ \",\" $1 \",\" $5 \",\" base / $5 \",\" $13 \",\" $14 \",\" ($1 ~ /^cudnn/ ? 2 : 1) }' %s", file("steps"))
stats dots using 3 nooutput
stages = STATS_records
low = STATS_min / 3
first = system(sprintf("awk -F, 'NR == 2 { print $1 }' %s", file("steps")))
best = system(sprintf("awk -F, '$2 == 256 && $3 == 1000 && $1 !~ /^cudnn/ && (!least || $5 < least) { least = $5; name = $1 } END { print name }' %s", file("steps")))
eval page("steps", 900, 150 + 30 * stages)
set title titled(sprintf("A step takes %s in %s and %s in %s: %s times less", duration(step(first, 256, 1000)), first, duration(step(best, 256, 1000)), best, times(step(first, 256, 1000) / step(best, 256, 1000))), "seed:256, ".machine."; median, lowest and highest of the runs; bold: times faster than NumPy")
set logscale x
set xrange [low:STATS_max * 12]
set yrange [stages - 0.4:-0.6]
eval "set xtics ".decades
set ytics scale 0
set xlabel "time of a step of 1000 images"
set key bottom right
set lmargin 19
cudnn = int(system(sprintf("grep -c ^cudnn %s || true", file("steps"))))
plot dots using ($7 == 1 ? $3 : NaN):1:5:6:ytic(2) with xerrorbars linestyle 1 title "this project's stages", \
     dots using ($7 == 2 ? $3 : NaN):1:5:6 with xerrorbars linestyle 2 title (cudnn ? "PyTorch with cuDNN" : ""), \
     dots using 6:1:(sprintf("   %s   {/:Bold %s×}", duration($3), times($4))) with labels left font ",12" textcolor rgb ink notitle
set lmargin

# ---- sweep.svg: time against batch, and against filters ---------------------------------------------
shown = "numpy sequential thread_per_image ring products graph production cudnn"
there(i) = int(system(sprintf("grep -c '^%s,' %s || true", name(i), file("steps")))) > 0
name(i) = system(sprintf("echo %s | tr _ ' '", word(shown, i)))
sweep(i, x, fixed, value) = sprintf("< awk -F, 'BEGIN { OFS = FS } $1 == \"%s\" && $%d == %d { print $%d, $5; n++ } END { if (!n) print 1, \"NaN\" }' %s | sort -n", name(i), fixed, value, x, file("steps"))
last = there(7) ? "production" : "sequential"
eval page("sweep", 1100, 660)
set multiplot
set label 1 titled(sprintf("From 100 to 1000 images a step takes %s times as long in %s, %s times in %s", times(step(first, 256, 1000) / step(first, 256, 100)), first, times(step(last, 256, 1000) / step(last, 256, 100)), last), "seed:F, ".machine) at screen 0.5, 0.965 center textcolor rgb ink
set lmargin at screen 0.085
set rmargin at screen 0.40
set tmargin at screen 0.83
set bmargin at screen 0.12
set autoscale x
set yrange [low * 0.3:STATS_max * 2]
set logscale xy
eval "set ytics scale 1 ".decades
set ylabel "time of a step"
set title "256 filters"
set xlabel "images in a batch"
set xrange [90:1110]
set xtics (100, 250, 500, 1000)
set key off
plot for [i = 1:words(shown)] sweep(i, 3, 2, 256) using 1:2 with linespoints linestyle i
unset label 1
set lmargin at screen 0.455
set rmargin at screen 0.77
set title "1000 images"
set xlabel "filters of the convolution"
set xrange [29:282]
set xtics (32, 64, 128, 256)
set format y ""
set ylabel ""
set key at screen 0.985, screen 0.83 right top Left reverse maxcols 1 samplen 2 spacing 1.3 noenhanced
plot for [i = 1:words(shown)] sweep(i, 2, 3, 1000) using 1:2 with linespoints linestyle i title (there(i) ? name(i) : "")
unset multiplot
set format y
set lmargin; set rmargin; set tmargin; set bmargin

# ---- phases.svg: share of a step's time, by the kind of work -----------------------------------------
# Each phase of phases.csv belongs to a group. A phase that is not listed here is an "other kernel".
groups = "copies work_on_the_host forward_pass backward_pass sums_of_gradients other_kernels"
phases = "weights_in=1 images_in=1 indices_in=1 gradients_out=1 copies_and_waits=1 gather=2 sum_on_the_host=2 all=2 weights_in_order=3 conv_+_ReLU_+_pool=3 forward=3 fc=3 softmax_+_loss=3 seed_pack=3 seed_fprop=3 seed_logits=3 fc_backward=4 conv_backward=4 backward=4 seed_wgrad=4 sum_of_the_slots=5 mean=5 seed_gradient=5"
rows_of = "$2 == 256 && $3 == 1000 && $1 != \"local\" && $1 != \"bf16\""
# columns: number of the stage; begin and end of the group in percent; number of the group; name of
# the stage; time of its step
shares = sprintf("< awk -F, -v phases='%s' 'BEGIN { n = split(phases, p, \" \"); for (i = 1; i <= n; i++) { at = match(p[i], /=/); group[substr(p[i], 1, at - 1)] = substr(p[i], at + 1) } } %s { gsub(/ /, \"_\", $5); if (!($1 in row)) { row[$1] = rows++; name[row[$1]] = $1 } ms[row[$1], $5 in group ? group[$5] : 6] += $6; sum[row[$1]] += $6 } END { for (r = 0; r < rows; r++) { at = 0; for (g = 1; g <= 6; g++) { share = 100 * ms[r, g] / sum[r]; print r \",\" at \",\" at + share \",\" g \",\" name[r] \",\" sum[r]; at += share } } }' %s", phases, rows_of, file("phases"))
set autoscale
unset logscale
stats shares using 1 nooutput
rows = STATS_max + 1
part(r, g) = real(system(sprintf("%s | awk -F, '$1 == %d && $4 == %d { print $3 - $2 }'", shares[3:*], r, g)))
stage_of(r) = system(sprintf("%s | awk -F, '$1 == %d && $4 == 1 { print $5 }'", shares[3:*], r))
eval page("phases", 1100, 190 + 30 * rows)
set title titled(sprintf("In %s copies take %.0f %% of a step, the forward pass %.0f %% and the backward pass %.0f %%", stage_of(rows - 1), part(rows - 1, 1), part(rows - 1, 3), part(rows - 1, 4)), "seed:256, 1000 images, ".machine."; right: time of a step")
set xrange [0:112]
set yrange [rows - 0.4:-0.6]
set xtics 0,20,100
set format x "%g %%"
set ytics nomirror textcolor rgb ink scale 0 ()
set xlabel "share of the time of a step"
set key outside bottom center horizontal title " " textcolor rgb ink maxcols auto Left reverse samplen 1.2 noenhanced
group(i) = system(sprintf("echo '%s' | tr _ ' '", word(groups, i)))
plot for [i = 1:6] shares using ($4 == i ? $2 : NaN):1:2:3:($1 - 0.36):($1 + 0.36) with boxxyerror linecolor rgb colour[i] title group(i), \
     shares using (NaN):1:ytic(5) with points notitle, \
     shares using (101):($4 == 1 ? $1 : NaN):(duration($6)) with labels left font ",12" textcolor rgb ink notitle
set format x

# ---- cores.svg: the CPU kernels of workers on several threads ----------------------------------------
threads(batch) = sprintf("< awk -F, '$3 == %d { if (!first) first = $5; print $1 \",\" $5 \",\" $6 \",\" $7 \",\" first / $1 }' %s", batch, file("cores"))
most = int(system(sprintf("awk -F, 'NR > 1 && $1 > most { most = $1 } END { print most }' %s", file("cores"))))
speedup(batch) = real(system(sprintf("awk -F, '$3 == %d && $1 == 1 { one = $5 } $3 == %d { last = $5 } END { print one / last }' %s", batch, batch, file("cores"))))
eval page("cores", 820, 460)
set autoscale
set logscale x 2
set logscale y 10
set xrange [0.9:most * 1.25]
set yrange [*:*]
set xtics nomirror (1, 2, 4, 8, 16, 32, 64, 128)
eval "set ytics nomirror scale 1 ".decades
set title titled(sprintf("%d threads are %.1f times as fast as one with 1000 images, %.1f times with 100", most, speedup(1000), speedup(100)), "seed:256 on the CPU, ".cpu."; median, lowest and highest of the runs")
set xlabel "threads"
set ylabel "time of a step"
set key outside bottom center horizontal title " " textcolor rgb ink maxcols auto Left reverse samplen 2
plot threads(1000) using 1:2:3:4 with yerrorlines linestyle 1 title "1000 images", \
     threads(100) using 1:2:3:4 with yerrorlines linestyle 2 title "100 images", \
     threads(1000) using 1:5 with lines dashtype 3 linecolor rgb ink title "time of one thread, divided", \
     threads(100) using 1:5 with lines dashtype 3 linecolor rgb ink notitle
unset logscale
set autoscale

# ---- memory.svg: copies between host and device -------------------------------------------------------
loads = int(system(sprintf("cat %s 2>/dev/null | grep -c host", file("memory"))))
if (loads > 0) {
	copies(what, where, column) = sprintf("< awk -F, '$1 == \"%s\" && $2 == \"%s\" { print $3 \",\" $%d }' %s", what, where, column, file("memory"))
	fastest(where) = real(system(sprintf("awk -F, '$2 == \"%s\" && $5 > most { most = $5 } END { print most }' %s", where, file("memory"))))
	bytes = "('4 B' 4, '64 B' 64, '1 KiB' 1024, '16 KiB' 16384, '256 KiB' 262144, '4 MiB' 4194304, '64 MiB' 67108864)"
	eval page("memory", 1100, 520)
	set multiplot
	set label 1 titled(sprintf("Pinned memory reaches %.0f GB/s, pageable memory %.0f", fastest("pinned"), fastest("pageable")), "copies between host and device, ".machine) at screen 0.5, 0.96 center textcolor rgb ink
	set autoscale y
	set logscale x 2
	set logscale y 10
	set xrange [3:1e8]
	eval "set xtics ".bytes
	set tmargin at screen 0.80
	set bmargin at screen 0.15
	set lmargin at screen 0.085
	set rmargin at screen 0.48
	set title "time of one copy"
	set xlabel "size of the copy"
	set ylabel "time until it is complete"
	set ytics nomirror scale 1 ('5 µs' 5, '10 µs' 10, '100 µs' 100, '1 ms' 1000, '4 ms' 4000)
	set key inside top left title "" Left reverse samplen 2 spacing 1.25
	plot copies("host to device", "pageable", 4) with linespoints linestyle 2 title "to the device, pageable", \
	     copies("device to host", "pageable", 4) with linespoints linestyle 5 title "from the device, pageable", \
	     copies("host to device", "pinned", 4) with linespoints linestyle 1 title "to the device, pinned", \
	     copies("device to host", "pinned", 4) with linespoints linestyle 3 title "from the device, pinned"
	unset label 1
	set lmargin at screen 0.59
	set rmargin at screen 0.97
	set title "rate of one copy"
	set ylabel "bytes per second"
	set ytics nomirror scale 1 ('1 MB/s' 0.001, '10 MB/s' 0.01, '100 MB/s' 0.1, '1 GB/s' 1, '10 GB/s' 10, '50 GB/s' 50)
	set key off
	plot copies("host to device", "pageable", 5) with linespoints linestyle 2, \
	     copies("device to host", "pageable", 5) with linespoints linestyle 5, \
	     copies("host to device", "pinned", 5) with linespoints linestyle 1, \
	     copies("device to host", "pinned", 5) with linespoints linestyle 3
	unset multiplot
}
