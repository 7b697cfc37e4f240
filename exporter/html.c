#include "exporter/html.h"

static const char style[] =
    "body{font:14px/1.45 system-ui,sans-serif;color:#1b1f24;margin:24px auto;max-width:1480px;"
    "padding:0 24px}h1{font-size:20px;margin:0 0 2px}h2{font-size:16px;margin:28px 0 8px}"
    "p{margin:2px 0;color:#57606a}table{border-collapse:collapse;margin:12px 0}"
    "td,th{padding:5px 14px;border-bottom:1px solid #d8dee4;text-align:right;"
    "font-variant-numeric:tabular-nums}th{font-weight:600;color:#57606a}"
    "td:first-child,th:first-child,td:last-child,th:last-child{text-align:left}"
    "td:not(:last-child),th{white-space:nowrap}tr.chosen td{font-weight:600;background:#f1f8ff}"
    ".scroll{overflow:auto;max-height:85vh;border:1px solid #d8dee4;border-radius:6px;"
    "background:#fff}.key{display:inline-block;margin-right:18px}"
    ".key i{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px;"
    "vertical-align:-1px}svg{display:block}svg text{font:12px system-ui,sans-serif;fill:#1b1f24}"
    "svg .small{font-size:10.5px;fill:#57606a}.box{stroke-width:1.4}"
    ".line{fill:none;stroke:#afb8c1;stroke-width:1.2}.moved{fill:none;stroke:#cf222e;"
    "stroke-width:1.6;stroke-dasharray:5 3}";

void mgpu_html_escape(FILE *to, const char *text)
{
    for (; *text; text++)
        switch (*text) {
        case '<':
            fputs("&lt;", to);
            break;
        case '>':
            fputs("&gt;", to);
            break;
        case '&':
            fputs("&amp;", to);
            break;
        case '"':
            fputs("&quot;", to);
            break;
        default:
            fputc(*text, to);
        }
}

void mgpu_html_begin(FILE *to, const char *title)
{
    fputs("<!doctype html>\n<html lang=en><meta charset=utf-8><title>", to);
    mgpu_html_escape(to, title);
    fprintf(to, "</title>\n<style>%s</style>\n", style);
}

double mgpu_html_tick(double range)
{
    double tick = 1e-9;
    static const double next[] = {2, 2.5, 2};
    for (int i = 0; tick * 12 < range && i < 90; i++)
        tick *= next[i % 3];
    return tick;
}
