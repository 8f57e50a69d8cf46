/* page.c - see page.h. */
#include "server/monitor/page.h"
#include "page_bytes.h"

const void *page_html(size_t *bytes)
{
	*bytes = sizeof(page_bytes);
	return page_bytes;
}
