// Reloads live parts of a page: <section data-live="/path" data-every="1000"> is replaced by what /path answers, while
// the page is visible. A part that fails keeps its contents and gets the class "stale". Elements with
// an id keep their focus, and <details> with an id stay open.

const FAILED_PAUSE_MS = 5000;

async function reload(part) {
  const response = await fetch(part.dataset.live, { headers: { "x-fragment": "1" }, redirect: "manual" });
  if (response.type === "opaqueredirect") {
    location.reload(); // the session is over
    return;
  }
  if (!response.ok) throw new Error(`status ${response.status}`);
  const html = await response.text();
  if (part.lastHtml !== html) {
    part.lastHtml = html;
    const open = [...part.querySelectorAll("details[open][id]")].map((details) => details.id);
    const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
    part.innerHTML = html;
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    part.dispatchEvent(new CustomEvent("reloaded", { bubbles: true }));
  }
}

async function keepLive(part) {
  while (part.isConnected) {
    let pause = Number(part.dataset.every || 1000);
    if (!document.hidden && part.dataset.live) {
      try {
        await reload(part);
        part.classList.remove("stale");
      } catch {
        part.classList.add("stale");
        pause = FAILED_PAUSE_MS;
      }
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

for (const part of document.querySelectorAll("[data-live]")) keepLive(part);

// <form data-confirm="Delete topic x?"> asks before it is sent.
document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

// <input data-filter="#table"> hides the rows of a table that lack its text.
document.addEventListener("input", (event) => {
  const target = event.target.dataset.filter;
  if (!target) return;
  const text = event.target.value.toLowerCase();
  for (const row of document.querySelectorAll(`${target} tbody tr`)) {
    row.hidden = !row.textContent.toLowerCase().includes(text);
  }
});
