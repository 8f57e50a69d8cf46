/* fill_model.c - see fill_model.h. */
#include "server/config/fill_model.h"
#include <string.h>

void fill_running(struct core_config *c, const struct model *m)
{
	_Static_assert(MAX_BATCHNORMS >= MODEL_MAX_LAYERS, "the layout has room for every layer");
	uint32_t first = 0;

	c->n_running = m->n_params - m->n_trained;
	c->running.n = 0;
	for (size_t i = 0; i < m->n_layers; i++)
		if (m->layer[i].kind == LAYER_BATCHNORM) {
			const uint32_t channels = (uint32_t)m->layer[i].in.c;

			c->running.norm[c->running.n].first = first;
			c->running.norm[c->running.n++].channels = channels;
			first += 2 * channels;
		}
}

void fill_model(struct core_config *c, const struct model *m)
{
	c->model_fingerprint = m->fingerprint;
	c->n_params = m->n_params;
	fill_running(c, m);
	_Static_assert(sizeof(c->model) >= sizeof(m->text), "a model's text fits the wire");
	memcpy(c->model, m->text, sizeof(m->text));
	c->images = (struct images){0};
	if (m->n_layers)
		c->images = (struct images){.channels = (uint32_t)m->input.c,
			.rows = (uint32_t)m->input.h,
			.cols = (uint32_t)m->input.w,
			.classes = (uint32_t)m->classes,
			.in_text = model_has_images(m)};
}
