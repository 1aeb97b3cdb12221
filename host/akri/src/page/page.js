// Shows what the server sends, and again whenever it sends more. All of it is set as text: devices choose their names.

const byId = (id) => document.getElementById(id);
let query = { find: "", page: 0 };
let source;

function element(name, text, className) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  if (text !== undefined) made.dir = "auto";
  return made;
}

function cell(label, ...content) {
  const made = document.createElement("td");
  made.dataset.label = label;
  const inner = document.createElement("div");
  inner.append(...content);
  made.append(inner);
  return made;
}

function row(...cells) {
  const made = document.createElement("tr");
  made.append(...cells);
  return made;
}

// Marks that carry their meaning without colour, too.
function state(text) {
  const isGood = text === "Online" || text === "True" || text === "Active";
  const isBad = text === "Offline" || text === "False" || text === "Refused";
  return element("span", (isGood ? "● " : isBad ? "▲ " : "○ ") + text, isGood ? "good" : isBad ? "bad" : "quiet");
}

function problem({ subjects, more, link, why, remedy }) {
  const made = document.createElement("li");
  const names = subjects.join(", ") + (more > 0 ? ` and ${more} more` : "");
  if (names) made.append(element("p", names, "name"));
  made.append(element("p", `ends at ${link}: ${why}`), element("p", `To do: ${remedy}`, "quiet"));
  return made;
}

function device({ resource, configuration, device, state: online, nodes, used, capacity, users, note }) {
  const name = [element("span", device, "name")];
  if (note) name.push(element("span", note, "note"));
  const holders = users.length ? users.map((user) => element("div", user)) : ["nobody"];
  if (used > users.length) holders.push(element("div", `and ${used - users.length} more`, "quiet"));
  return row(
    cell("Device", ...name),
    cell("Resource", element("span", resource, "name"), element("span", configuration, "note")),
    cell("State", state(online)),
    cell("Slots", `${used} of ${capacity}`),
    cell("Used by", ...holders),
    cell("Nodes", element("span", nodes)),
  );
}

function configuration({ name, instances, ready, reason, message }) {
  return row(
    cell("Name", element("span", name, "name")),
    cell("Devices", String(instances)),
    cell("Ready", state(ready)),
    cell("Says", element("span", reason), element("span", message, "note")),
  );
}

// Numbers of devices as a line from the oldest to the newest.
function sparkline(history) {
  const most = Math.max(...history, 1);
  const points = history.map((value, at) => `${(100 * at) / Math.max(history.length - 1, 1)},${22 - (20 * value) / most}`);
  if (points.length === 1) points.push(`100,${22 - (20 * history[0]) / most}`);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 100 24");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", history.length > 1 ? `devices: ${history.slice(-8).join(", then ")}` : "unchanged");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", points.join(" "));
  svg.append(line);
  return svg;
}

function handler({ name, object, state: of, devices, history, result }) {
  const names = [element("span", name, "name")];
  if (object !== name && object !== "-") names.push(element("span", object, "note"));
  return row(
    cell("Name", ...names),
    cell("State", state(of)),
    cell("Devices", String(devices)),
    cell("Changes", sparkline(history)),
    cell("Last result", element("span", result)),
  );
}

function count(number, thing) {
  return `${number} ${thing}${number === 1 ? "" : "s"}`;
}

// Replaces the children only if they differ, so that screen readers hear changes alone and a selection stays.
function fill(id, made) {
  const before = byId(id);
  const after = before.cloneNode(false);
  after.append(...made);
  if (after.innerHTML !== before.innerHTML) before.replaceChildren(...after.childNodes);
}

function say(id, text) {
  byId(id).hidden = !text;
  byId(id).textContent = text;
}

const more = ({ rows, count: all }) => (all > rows.length ? `and ${all - rows.length} more` : "");

function show(view) {
  fill("problems", view.problems.rows.map(problem));
  byId("no-problems").hidden = view.problems.count > 0 || view.hidden.length > 0;
  say("hidden", view.hidden.length ? `Not known here, for its user may not list them: ${view.hidden.join(", ")}.` : "");
  say("more-problems", more(view.problems));
  fill("device-rows", view.devices.rows.map(device));
  say("no-devices", view.devices.count ? "" : query.find ? "No device has this in it." : "No devices.");
  byId("pager").hidden = view.pages < 2;
  byId("previous").disabled = view.page === 0;
  byId("next").disabled = view.page >= view.pages - 1;
  say("place", `Page ${view.page + 1} of ${view.pages}, ${count(view.devices.count, "device")}`);
  query.page = view.page;
  fill("configuration-rows", view.configurations.rows.map(configuration));
  say("more-configurations", more(view.configurations));
  fill("handler-rows", view.handlers.rows.map(handler));
  say("more-handlers", more(view.handlers));
  const problems = view.problems.count ? count(view.problems.count, "problem") : "no problems";
  byId("summary").textContent = `${count(view.total, "device")}, ${problems}`;
  document.title = view.problems.count ? `(${view.problems.count}) Akri` : "Akri";
  say("live", "live");
}

function listen() {
  source?.close();
  source = new EventSource(`events?${new URLSearchParams(query)}`);
  source.onmessage = (event) => show(JSON.parse(event.data));
  source.onerror = () => say("live", "no connection; what you see is old");
}

let typed;
function find(now) {
  clearTimeout(typed);
  typed = setTimeout(() => {
    query = { find: byId("find").value, page: 0 };
    listen();
  }, now ? 0 : 300);
}

function turn(by) {
  query.page += by;
  listen();
}

byId("find").addEventListener("input", () => find(false));
byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  find(true);
});
byId("previous").addEventListener("click", () => turn(-1));
byId("next").addEventListener("click", () => turn(1));
listen();
