"""Style and script of the report's page; both are put into it."""

from __future__ import annotations

STYLE = """
:root { --ink: #1d2733; --soft: #5d6b7a; --line: #d9dfe6; --paper: #f6f8fa; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 14px/1.5 system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1600px; margin: 0 auto; padding: 24px 32px 64px; }
h1 { font-size: 26px; margin: 0; } h2 { font-size: 18px; margin: 32px 0 8px; }
code { font: 12px/1.45 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
.note { color: var(--soft); margin: 4px 0; }
.cards { display: flex; flex-wrap: wrap; gap: 12px; margin: 16px 0; }
.cards div { background: #fff; border: 1px solid var(--line); border-radius: 8px;
  padding: 12px 18px; min-width: 110px; }
.cards strong { display: block; font-size: 22px; font-weight: 600; }
.cards span { color: var(--soft); font-size: 12px; }
.kinds > span { margin-right: 14px; white-space: nowrap; }
.chip { border-radius: 5px; padding: 2px 8px; font-size: 12.5px; white-space: nowrap; }
table { border-collapse: collapse; width: 100%; background: #fff; border: 1px solid var(--line); }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: 12px; }
th, td { padding: 7px 12px; border-bottom: 1px solid var(--line); vertical-align: top; }
td:first-child { text-align: right; color: var(--soft); }
td:nth-child(3), td:nth-child(4) { max-width: 380px; }
.place { display: block; color: var(--soft); font-size: 12px; overflow-wrap: anywhere; }
details { margin-top: 4px; color: var(--soft); font-size: 12px; }
details li { margin: 4px 0; overflow-wrap: anywhere; }
.links button { border: 1px solid var(--line); border-radius: 4px; padding: 1px 7px;
  margin: 0 1px 3px; font: inherit; font-size: 12px; cursor: pointer; }
.panes { display: flex; gap: 16px; } figure { margin: 0; flex: 1 1 0; min-width: 0; }
figcaption { font-weight: 600; margin-bottom: 4px; }
.pane { background: #fff; border: 1px solid var(--line); border-radius: 8px; overflow: auto;
  max-height: 85vh; }
.pane svg { display: block; margin: 0 auto; }
.node rect { fill: #fff; stroke: #aab4bf; }
.node.fused rect { stroke: #52677c; }
.node text { text-anchor: middle; fill: var(--soft);
  font: 9.5px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
.node text.op { fill: var(--ink); font-size: 11px; }
.node.fused text { fill: #33414f; }
.node text.tag { text-anchor: start; fill: #8a6d3b; font-size: 8.5px; }
.node:hover rect, .node.marked rect { stroke: #c2410c; stroke-width: 2.5; }
.edge { fill: none; stroke: #b4bec9; }
#tip { position: fixed; right: 16px; bottom: 16px; max-width: 60vw; margin: 0; padding: 10px 14px;
  background: var(--ink); color: #f3f6f9; border-radius: 8px; white-space: pre-wrap;
  overflow-wrap: anywhere; font: 12px/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, monospace; }
"""

# Shows a node's tooltip at once and in full, and brings a fusion into view in both drawings.
SCRIPT = """
function show(pane, node, behavior) {
  const box = node.getBoundingClientRect(), frame = pane.getBoundingClientRect();
  pane.scrollBy({ top: box.top - frame.top - 60, behavior,
    left: box.left + box.width / 2 - frame.left - frame.width / 2 });
}
const tip = document.getElementById("tip");
for (const pane of document.querySelectorAll(".pane")) {
  pane.addEventListener("mouseover", (event) => {
    const node = event.target.closest(".node");
    tip.hidden = !node;
    if (node) tip.textContent = node.querySelector("title").textContent;
  });
  pane.addEventListener("mouseleave", () => { tip.hidden = true; });
  const first = pane.querySelector(".fused") || pane.querySelector(".node");
  if (first) show(pane, first, "instant");
}
for (const button of document.querySelectorAll(".links button")) {
  button.addEventListener("click", () => {
    for (const node of document.querySelectorAll(".marked")) node.classList.remove("marked");
    const { graph, fusion } = button.dataset;
    for (const pane of document.querySelectorAll(`.pane[data-graph="${graph}"]`)) {
      const nodes = pane.querySelectorAll(`[data-fusions~="${fusion}"]`);
      for (const node of nodes) node.classList.add("marked");
      if (!nodes.length) continue;
      show(pane, nodes[0], "smooth");
    }
  });
}
"""
