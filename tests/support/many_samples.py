"""JavaScript for tests of the timeline with many workers."""

# sample(t, n) returns a history sample with n workers at the time t
MANY_SAMPLES = """
const sample = (t, n) => ({t, kind: "sample", term: 1, epoch: 1, images: 9, updates: 9, images_per_s: 900,
    loss: 1 + 1e3 / (t % 1e6 + 1e3), live: n, pushes: 9, duplicates: 0, rejected: 0, refusals: 0, generation: 1,
    workers: Array.from({length: n}, (_, i) => [i + 1, i % 9 ? "live" : "away", i, i % 7, 30, null])});
"""

# returns the share of pixels that are painted, in the part of a canvas that has the timeline's
# cells
PAINTED = """
const canvas = document.getElementById(arguments[0]) || document.querySelector(arguments[0]);
const d = canvas.getContext("2d").getImageData(130, 5, canvas.width - 140, canvas.height - 30).data;
let painted = 0;
for (let i = 3; i < d.length; i += 4)
    painted += d[i] > 0;
return painted / (d.length / 4);
"""
