"""JavaScript for tests of the timeline with many workers."""

# sample(t, n) returns a history sample with n workers at the time t
MANY_SAMPLES = """
const sample = (t, n) => ({t, kind: "sample", term: 1, epoch: 1, images: 9, updates: 9, images_per_s: 900,
    loss: 1 + 1e3 / (t % 1e6 + 1e3), live: n, pushes: 9, duplicates: 0, rejected: 0, refusals: 0, generation: 1,
    workers: Array.from({length: n}, (_, i) => [i + 1, i % 9 ? "live" : "away", i, i % 7, 30, null])});
"""

# returns the share of pixels that are painted on the middle line of each row, in the part of a canvas
# that has the timeline's cells; a state need not paint the rest of a row's height
PAINTED = """
const canvas = document.getElementById(arguments[0]) || document.querySelector(arguments[0]);
const {ids, top, row} = canvas.places, {data, width} = canvas.getContext("2d").getImageData(130, top, canvas.width - 140, ids.length * row);
let painted = 0;
for (let i = 0; i < ids.length; i++)
    for (let x = 0; x < width; x++)
        painted += data[4 * (Math.floor((i + 0.5) * row) * width + x) + 3] > 0;
return painted / (ids.length * width);
"""
