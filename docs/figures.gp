# figures.gp - the style of all figures in docs/: gnuplot loads this file.
#
# The background is transparent, and each colour is readable on white and on GitHub's dark pages:
# the ink has a contrast above 4 to both, and the colours have 3. The eight colours of
# series remain different with colour blindness. tests/e2e/test_figures.py checks this for each
# published figure. A figure has at most eight series, and each series has its own kind of point.

ink = "#787d80"
array colour[8] = ["#3d5cad", "#ff5c14", "#52a37a", "#8500ff", "#c20a0a", "#5285ad", "#a37aff", "#476666"]

set encoding utf8
set border 3 linecolor rgb ink
set tics nomirror textcolor rgb ink
set title textcolor rgb ink
set key textcolor rgb ink
set xlabel textcolor rgb ink
set ylabel textcolor rgb ink
set grid linecolor rgb "#c0787d80" linewidth 1 dashtype solid
set style fill solid 1 noborder
points = "7 5 9 13 11 6 4 8"
do for [i = 1:8] {
	set style line i linecolor rgb colour[i] linewidth 2 pointtype int(word(points, i)) pointsize 0.7
}

# Begin a figure of this size in pixels.
figure(file, width, height) = sprintf("set terminal svg size %d,%d dynamic enhanced font 'sans-serif,14'; set output '%s'", width, height, file)
# A title: the result, and below it in smaller letters what was measured on which machine.
titled(result, measured) = result."\n{/*0.8 ".measured."}"
