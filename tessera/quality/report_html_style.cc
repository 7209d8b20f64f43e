#include "tessera/quality/report_html_parts.h"

namespace tessera::quality {

// The plans' colours are Okabe and Ito's, which colour-blind people tell apart, darker on light and lighter on dark.
std::string_view report_style() {
  return R"css(
:root{--bg:#fff;--fg:#1c1f23;--soft:#5b6470;--line:#d9dee4;--card:#f6f7f9;--band:#dcebdd;--good:#1a6b34;--bad:#a3261d;
--open:#7a5b00;--c0:#3b4350;--c1:#0072b2;--c2:#c04d00;--c3:#00805c;--c4:#a8528a;--c5:#8a6d00;--c6:#2f8fc4;--c7:#7d4bc2}
@media(prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e6e9ed;--soft:#9aa5b1;--line:#333a42;--card:#1c2026;
--band:#1f3a27;--good:#7fd495;--bad:#ff8f85;--open:#e3c260;--c0:#c3cad3;--c1:#56b4e9;--c2:#ff9248;--c3:#2fd0a0;
--c4:#e58fc7;--c5:#e5c93a;--c6:#8fd0f5;--c7:#bb98f5}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",
sans-serif}
main{max-width:1080px;margin:0 auto;padding:20px 16px 60px}
h1{font-size:1.7rem;margin:.2em 0}h2{font-size:1.25rem;margin:2.2em 0 .5em;padding-top:.3em;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:1.5em 0 .4em}p{margin:.5em 0;max-width:76ch}small,.soft{color:var(--soft);font-weight:normal}
.headline{font-size:1.05rem}
dl{display:flex;flex-wrap:wrap;gap:6px 28px;margin:.8em 0}dt{color:var(--soft);font-size:.8rem}dd{margin:0}
pre,code{font:13px/1.45 ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace}
pre{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:8px 10px;overflow-x:auto;
white-space:pre-wrap;overflow-wrap:anywhere}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:left;vertical-align:top;padding:5px 10px 5px 0;border-bottom:1px solid var(--line)}
thead th{color:var(--soft);font-weight:600;font-size:12.5px}
.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}th.name{font-weight:600;white-space:nowrap}
tbody td:not(.n){min-width:110px}
td.answer{white-space:pre-wrap;overflow-wrap:anywhere;min-width:160px;max-width:360px;font-size:13px}
i[class^=p]{display:inline-block;width:10px;height:10px;border-radius:50%;background:currentColor}
.legend span{margin-right:16px;white-space:nowrap}.legend i{margin-right:6px}
.p0{color:var(--c0)}.p1{color:var(--c1)}.p2{color:var(--c2)}.p3{color:var(--c3)}
.p4{color:var(--c4)}.p5{color:var(--c5)}.p6{color:var(--c6)}.p7{color:var(--c7)}
.row{display:grid;grid-template-columns:180px minmax(120px,1fr) 290px;gap:0 14px;align-items:center;padding:4px 0;
border-bottom:1px solid var(--line)}
.row.cell{padding:1px 0}.row.cell>.what{padding-left:14px;font-weight:normal}
.row>.what{font-weight:600;overflow-wrap:anywhere}.row>.numbers{font-size:13px;font-variant-numeric:tabular-nums}
.row>.numbers div{line-height:18px;white-space:nowrap}
.row.forest{grid-template-columns:210px minmax(120px,1fr) 320px}
.row.forest>.numbers div{white-space:normal}
.row.head{border:0}
.equivalent,.same{color:var(--good);font-weight:600}.different,.different_within{color:var(--bad);font-weight:600}
.not_enough_data{color:var(--open);font-weight:600}
svg{display:block;overflow:visible}svg text{font-size:11px;fill:var(--soft)}
svg g line{stroke:currentColor;stroke-width:3;stroke-linecap:round}svg g line.thin{stroke-width:1.5}
svg circle{fill:currentColor}svg .grid{stroke:var(--line);stroke-width:1}
svg .mark{stroke:var(--soft);stroke-width:1.5;stroke-dasharray:3 3}svg .band{fill:var(--band)}
details{margin:.6em 0}summary{cursor:pointer;color:var(--soft)}
@media(max-width:720px){.row,.row.forest{grid-template-columns:1fr}.row>.numbers{padding-bottom:6px}
.row.head .what,.row.head .numbers{display:none}main{padding:12px 12px 40px}}
@media print{details{display:block}body{font-size:12px}}
)css";
}

}  // namespace tessera::quality
