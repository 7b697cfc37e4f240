/* What pages for a browser share: one file that needs nothing else. */
#ifndef MGPU_EXPORTER_HTML_H
#define MGPU_EXPORTER_HTML_H

#include <stdio.h>

/* Text as text, whatever is in it. */
void mgpu_html_escape(FILE *to, const char *text);

/* Everything before the first heading: title and style. Classes: "scroll" around what may be large,
 * "key" around a colour's <i>, "chosen" on a table's row; in pictures "small", "box", "line",
 * "moved". */
void mgpu_html_begin(FILE *to, const char *title);

/* 1, 2 or 5 times a power of ten: about ten steps to `range`. */
double mgpu_html_tick(double range);

#endif
