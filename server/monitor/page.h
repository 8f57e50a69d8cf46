/*
 * page.h - the page of the server: one HTML file with its styles, scripts and chart library, which
 * the build puts together from server/monitor/page/. Its bytes never change while the server runs.
 */
#ifndef SERVER_MONITOR_PAGE_H
#define SERVER_MONITOR_PAGE_H
#include <stddef.h>

/* Returns the text of the monitoring page, and writes its length to *bytes. */
const void *page_html(size_t *bytes);

#endif
