// The page of messages: copies commands, keeps named filters in this browser, and appends new messages of a live tail.

const FILTERS = "kafscale.filters";
const TAIL_PAUSE_MS = 1000;
const FAILED_PAUSE_MS = 5000;
const TAIL_ROWS_MAX = 500;

document.addEventListener("click", async (event) => {
  const text = event.target.dataset?.copy;
  if (text === undefined) return;
  const label = event.target.textContent;
  try {
    await navigator.clipboard.writeText(text);
    event.target.textContent = "Copied";
  } catch {
    prompt("The browser does not allow to copy. Copy by hand:", text); // pages over http from another host
  }
  setTimeout(() => (event.target.textContent = label), 1500);
});

// Filters are an object of name to query string, without the cursor.
function savedFilters() {
  try {
    const found = JSON.parse(localStorage.getItem(FILTERS) || "{}");
    return found && typeof found === "object" && !Array.isArray(found) ? found : {};
  } catch {
    return {};
  }
}

function presentQuery() {
  const query = new URLSearchParams(location.search);
  for (const name of ["at", "before"]) query.delete(name);
  return query.toString();
}

function showFilters(list) {
  const entries = Object.entries(savedFilters()).sort(([one], [other]) => one.localeCompare(other));
  list.replaceChildren(
    ...entries.map(([name, query]) => {
      const item = document.createElement("li");
      const link = document.createElement("a");
      link.href = `${location.pathname}?${query}`;
      link.textContent = name;
      const remove = document.createElement("button");
      remove.type = "button";
      remove.className = "quiet";
      remove.textContent = "Remove";
      remove.setAttribute("aria-label", `Remove the filter ${name}`);
      remove.addEventListener("click", () => {
        const { [name]: _, ...rest } = savedFilters();
        localStorage.setItem(FILTERS, JSON.stringify(rest));
        showFilters(list);
      });
      item.append(link, " ", remove);
      return item;
    }),
  );
}

for (const part of document.querySelectorAll("[data-saved-filters]")) {
  const [input, list] = [part.querySelector("input"), part.querySelector("ul")];
  part.querySelector("button").addEventListener("click", () => {
    const name = input.value.trim();
    if (!name) return input.focus();
    localStorage.setItem(FILTERS, JSON.stringify({ ...savedFilters(), [name]: presentQuery() }));
    input.value = "";
    showFilters(list);
  });
  part.hidden = false;
  showFilters(list);
}

// <tbody data-tail="/path" data-next="query"> asks for the messages behind its cursor, newest first.
async function follow(body) {
  while (body.isConnected) {
    let pause = TAIL_PAUSE_MS;
    if (!document.hidden) {
      try {
        const response = await fetch(`${body.dataset.tail}?${body.dataset.next}`, { redirect: "manual" });
        if (response.type === "opaqueredirect") return location.reload(); // the session is over
        if (!response.ok) throw new Error(`status ${response.status}`);
        const answer = document.createElement("template");
        answer.innerHTML = await response.text();
        const found = answer.content.querySelector("tbody");
        body.dataset.next = found.dataset.next;
        body.prepend(...found.children);
        while (body.children.length > TAIL_ROWS_MAX) body.lastElementChild.remove();
        body.classList.remove("stale");
      } catch {
        body.classList.add("stale");
        pause = FAILED_PAUSE_MS;
      }
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

for (const body of document.querySelectorAll("[data-tail]")) follow(body);
