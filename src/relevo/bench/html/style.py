"""How a report looks: light and dark as the reader's system is, in print, and from 360 pixels of width on."""

from __future__ import annotations

_LIGHT = ("#0b65c2", "#c2410c", "#0f7b5f", "#a83279", "#7a5c00", "#5b48c2", "#0e7490", "#57606a")
_DARK = ("#5fb0ff", "#ff9a5c", "#3fcf9f", "#f28fc6", "#e3c04b", "#b3a4ff", "#4fd0e6", "#b1bac4")


def _colours(colours: tuple[str, ...]) -> str:
    return "".join(f"--c{index}:{colour};" for index, colour in enumerate(colours))


_LIGHT_PAGE = f"--ink:#1c2128;--dim:#57606a;--page:#fff;--card:#f6f8fa;--line:#d5dae0;--warn:#fff3d6;{_colours(_LIGHT)}"
_DARK_PAGE = (
    f"--ink:#e6edf3;--dim:#9aa4af;--page:#0d1117;--card:#161b22;--line:#30363d;--warn:#3d2f0c;{_colours(_DARK)}"
)

STYLE = f"""
:root{{color-scheme:light dark;{_LIGHT_PAGE}}}
@media (prefers-color-scheme:dark){{:root{{{_DARK_PAGE}}}}}
@media print{{:root{{color-scheme:light;{_LIGHT_PAGE}}}}}
*{{box-sizing:border-box}}
body{{margin:0 auto;padding:24px clamp(12px,3vw,40px) 48px;max-width:1440px;background:var(--page);color:var(--ink);
 font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif}}
h1{{font-size:1.6rem;line-height:1.25;margin:0 0 6px;overflow-wrap:anywhere}}
h2{{font-size:1.15rem;margin:36px 0 12px;padding-top:12px;border-top:1px solid var(--line)}}
.lead{{font-size:1.1rem;margin:0 0 8px;max-width:75ch;overflow-wrap:anywhere}}
.when{{color:var(--dim);margin:0}}
.partial{{background:var(--warn);border:1px solid var(--c4);border-radius:6px;padding:10px 14px;margin:14px 0;
 font-weight:600}}
.plots{{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,400px),1fr));gap:16px}}
figure{{margin:0;padding:14px;background:var(--card);border:1px solid var(--line);border-radius:8px;
 break-inside:avoid;min-width:0}}
figcaption{{font-weight:600;margin-bottom:6px;overflow-wrap:anywhere}}
.note{{color:var(--dim);font-size:.87rem;margin:6px 0 0}}
.legend{{list-style:none;display:flex;flex-wrap:wrap;gap:2px 14px;margin:0 0 6px;padding:0;font-size:.82rem}}
.legend li{{overflow-wrap:anywhere}}
.swatch{{vertical-align:middle;margin-right:5px}}
svg.figure{{display:block;width:100%;height:auto;font:12px system-ui,"DejaVu Sans",sans-serif}}
svg text{{fill:var(--ink)}}
svg .tick,svg .label{{fill:var(--dim)}}
svg .name,svg .value{{paint-order:stroke;stroke:var(--card);stroke-width:3px;stroke-linejoin:round}}
svg .value{{font-weight:600;font-variant-numeric:tabular-nums}}
.grid{{stroke:var(--line);stroke-width:1}}
.moment{{stroke:var(--c1);stroke-width:1;stroke-dasharray:3 3}}
.reference{{stroke:var(--ink);stroke-width:1.2;stroke-dasharray:4 3}}
.curve{{fill:none;stroke-width:2;stroke-linejoin:round}}
.whisker{{stroke-width:2.5;opacity:.55}}
.end{{stroke-width:2}}
.cloud{{opacity:.45}}
{"".join(f".c{i}{{stroke:var(--c{i})}}.c{i}.dot,.c{i}.bar{{fill:var(--c{i});stroke:none}}" for i in range(len(_LIGHT)))}
.tables{{display:flex;flex-wrap:wrap;gap:0 48px;align-items:flex-start}}
.tables p{{flex-basis:100%;margin:0 0 12px}}
.wide{{overflow-x:auto;margin:0 0 18px;max-width:100%}}
table{{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}}
caption{{text-align:left;font-weight:600;padding:6px 0;min-width:280px}}
th,td{{padding:4px 12px 4px 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top;
 white-space:nowrap}}
tbody th{{font-weight:500}}
thead th{{color:var(--dim);font-weight:600;white-space:normal;vertical-align:bottom}}
.right{{text-align:right}}
.facts{{margin-bottom:14px}}
.facts th{{color:var(--dim);white-space:nowrap;padding-right:18px}}
.facts td{{white-space:normal;overflow-wrap:anywhere}}
pre{{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:10px 14px;white-space:pre-wrap;
 overflow-wrap:anywhere;font:13px/1.45 ui-monospace,"DejaVu Sans Mono",monospace;margin:0 0 16px}}
a{{color:var(--c0)}}
@media print{{body{{padding:0}}.wide{{overflow:visible}}th,td{{white-space:normal}}}}
"""
