// What /live says, drawn once a second. Everything that comes from the server is put into text nodes.

const byId = (id) => document.getElementById(id);
const svgNS = "http://www.w3.org/2000/svg";
const hourMS = 60 * 60 * 1000;
const longMS = 5 * 60 * 1000;
const shortMS = 60 * 1000; // until there is more to see
const stepMS = 1000;
const gapMS = 25 * 1000; // the server records a moment each 10 seconds
let rangeMS = longMS;

function make(name, className, text) {
  const e = document.createElement(name);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}

function draw(name, attributes) {
  const e = document.createElementNS(svgNS, name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  return e;
}

// say changes a text only where it is another one, so that what reads the page aloud hears news alone.
function say(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

function amount(x) {
  if (x === 0) return "0";
  if (x < 9.95) return x.toFixed(1);
  if (x < 9999.5) return x.toFixed(0);
  if (x < 999950) return (x / 1e3).toFixed(1) + "k";
  return (x / 1e6).toFixed(2) + "M";
}

function megabytes(x) {
  x /= 1e6;
  if (x === 0) return "0";
  if (x < 99.995) return x.toFixed(2);
  if (x < 999.95) return x.toFixed(1);
  return x.toFixed(0);
}

function micros(us) {
  if (us === 0) return "\u2013";
  if (us < 9.95) return us.toFixed(1) + " \u00b5s";
  if (us < 999.5) return us.toFixed(0) + " \u00b5s";
  if (us < 99950) return (us / 1e3).toFixed(1) + " ms";
  if (us < 999500) return (us / 1e3).toFixed(0) + " ms";
  return (us / 1e6).toFixed(1) + " s";
}

const depth = (x) => (x === 0 ? "0" : x < 99.995 ? x.toFixed(2) : x.toFixed(0));

function size(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; n >= 1024 && i < units.length - 1; i++) n /= 1024;
  return (i === 0 ? n : n.toFixed(1)) + " " + units[i];
}

function span(seconds) {
  const s = Math.floor(seconds);
  const d = Math.floor(s / 86400), h = Math.floor(s / 3600) % 24, m = Math.floor(s / 60) % 60;
  if (d > 0) return `${d} d ${h} h`;
  if (h > 0) return `${h} h ${m} min`;
  if (m > 0) return `${m} min ${s % 60} s`;
  return `${s} s`;
}

// The numbers at the top: how they are called, and what they are of an answer.
const tiles = [
  ["Calls", "calls", (v) => amount(v.total.ops_per_second), "/s"],
  ["In", "in", (v) => megabytes(v.total.in_bytes_per_second), "MB/s"],
  ["Out", "out", (v) => megabytes(v.total.out_bytes_per_second), "MB/s"],
  ["Latency, mean", "mean", (v) => micros(v.total.mean_us), ""],
  ["Latency, p99", "p99", (v) => micros(v.total.p99_us), ""],
  ["In progress", "depth", (v) => depth(v.total.depth), "calls"],
  ["Retransmissions", "retransmits", (v) => amount(v.retransmits_per_second), "/s"],
].map(([title, id, value, unit]) => {
  const tile = make("div", "tile"), p = make("p"), number = make("span");
  number.id = "tile-" + id;
  p.append(number, " ", make("small", "", unit));
  tile.append(make("h2", "", title), p);
  byId("tiles").append(tile);
  return (v) => say(number, value(v));
});

// The charts: title, how a value is written, and lines by the name of their number in a moment.
const charts = [
  ["Throughput", (x) => megabytes(x) + " MB/s", [["in", "in", "in"], ["out", "out", "out dashed"]]],
  ["Latency", micros, [["mean", "mean_us", "in"], ["p99", "p99_us", "p99 dashed"]]],
  ["Calls", (x) => amount(x) + "/s", [["calls", "ops", "out"]]],
].map(([title, format, lines]) => {
  const figure = make("figure", "chart"), caption = make("figcaption");
  caption.append(make("b", "", title));
  const keys = lines.map(([name, , look]) => {
    const key = make("span", "key " + look);
    key.append(name + " ");
    const value = make("span");
    key.append(value);
    caption.append(key);
    return value;
  });
  const svg = draw("svg", { role: "img", "aria-label": title });
  figure.append(caption, svg);
  byId("charts").append(figure);
  return (history, now) => {
    const w = Math.max(svg.clientWidth, 100), h = Math.max(svg.clientHeight, 60);
    const top = 16, bottom = h - 16;
    const windowMS = rangeMS > longMS || (history.length > 0 && now - history[0].time_ms > shortMS) ? rangeMS : shortMS;
    const seen = history.filter((m) => m.time_ms >= now - windowMS);
    let most = 0;
    for (const m of seen) for (const [, field] of lines) most = Math.max(most, m[field] ?? 0);
    const full = round(most);
    const x = (t) => w - ((now - t) / windowMS) * w;
    const y = (n) => bottom - (n / full) * (bottom - top);
    const parts = [];
    for (const share of [0, 0.5, 1]) parts.push(draw("line", { x1: 0, x2: w, y1: y(full * share), y2: y(full * share) }));
    const label = draw("text", { x: 0, y: top - 5 });
    label.textContent = most > 0 ? format(full).replace(/\.0+(?=\D|$)/, "") : "";
    const then = draw("text", { x: 0, y: h - 3 });
    then.textContent = windowMS / 60000 + " min ago";
    const here = draw("text", { x: w, y: h - 3, "text-anchor": "end" });
    here.textContent = "now";
    parts.push(label, then, here);
    lines.forEach(([, field, look]) => {
      let d = "", last = -Infinity;
      for (const m of seen) {
        if (m[field] === null) { // nothing was measured: a gap, not a zero
          last = -Infinity;
          continue;
        }
        d += (m.time_ms - last > gapMS ? "M" : "L") + x(m.time_ms).toFixed(1) + " " + y(m[field]).toFixed(1);
        last = m.time_ms;
      }
      if (d) parts.push(draw("path", { d, class: look }));
    });
    svg.replaceChildren(...parts);
    const latest = history[history.length - 1];
    lines.forEach(([, field], i) => say(keys[i], latest ? format(latest[field] ?? 0) : ""));
    svg.setAttribute("aria-label", title + " of the last " + (windowMS > longMS ? "hour" : "minutes") + (latest ? ": " + lines.map(([name, field]) => name + " " + format(latest[field] ?? 0)).join(", ") : ""));
  };
});

// round is the next number above that is easy to read: 1, 2 or 5 times a power of ten.
function round(x) {
  if (x <= 0) return 1;
  const p = 10 ** Math.floor(Math.log10(x));
  for (const f of [1, 2, 5, 10]) if (x <= f * p) return f * p;
  return 10 * p;
}

const facts = [
  ["Connections", (s) => `${s.rdma_connections} RDMA, ${s.tcp_connections} TCP`],
  ["NFS 4 clients", (s) => `${s.nfs4_clients}, ${s.sessions} sessions`],
  ["Open files", (s) => `${s.opens}, ${s.delegations} delegations`],
  ["Locks", (s) => `${s.locks_held} held, ${s.locks_waiting} waiting`],
  ["Workers", (s) => `${s.workers_busy} of ${s.workers} busy, ${s.queued} calls wait`],
  ["Credits", (s) => `${s.credits_in_use} of ${s.credits} in use`],
  ["Registered memory", (s) => `${size(s.memory_bytes)} in calls`],
  ["Grace period", (s) => (s.grace ? `on, ${s.grace_waiting} clients to come` : "over")],
].map(([title, value]) => {
  const box = make("div"), dd = make("dd");
  box.append(make("dt", "", title), dd);
  byId("facts").append(box);
  return (s) => say(dd, value(s));
});

const number = (title, field, format, warn) => ({ title, field, format, warn });
const word = (title, field) => ({ title, field, word: true });
const rates = [
  word("Transport", "transport"),
  number("Calls/s", "ops_per_second", amount), number("In MB/s", "in_bytes_per_second", megabytes), number("Out MB/s", "out_bytes_per_second", megabytes),
  number("Mean", "mean_us", micros), number("p99", "p99_us", micros), number("Depth", "depth", depth), number("Failed/s", "failed_per_second", amount),
];
const idleRow = (r) => r.calls === 0;
const tables = [
  { id: "clients", title: "Clients", columns: [word("Client", "name"), ...rates], sort: "ops_per_second", idle: idleRow },
  { id: "exports", title: "Exports", columns: [word("Export", "name"), word("Kind", "kind"), ...rates], sort: "ops_per_second", idle: idleRow },
  { id: "operations", title: "Operations", columns: [word("Operation", "name"), ...rates], sort: "ops_per_second", idle: idleRow },
  {
    id: "qps", title: "Queue pairs", sort: "out_bytes_per_second", idle: (q) => q.in_packets_per_second === 0 && q.out_packets_per_second === 0 && q.send_queued === 0,
    columns: [
      word("Remote", "remote"), word("QP", "qpn"), word("Type", "type"), word("State", "state"), number("Queue", "send_queued", String),
      number("In MB/s", "in_bytes_per_second", megabytes), number("Out MB/s", "out_bytes_per_second", megabytes),
      number("Packets in/s", "in_packets_per_second", amount), number("Packets out/s", "out_packets_per_second", amount),
      number("Resent/s", "retransmits_per_second", amount, true), number("RNR/s", "rnrs_per_second", amount), number("RTT", "rtt_us", micros),
    ],
  },
];
for (const t of tables) t.down = true;
let table = tables[0];
let answer = null;

const tabs = tables.map((t) => {
  const b = make("button", "", t.title);
  b.type = "button";
  b.id = "tab-" + t.id;
  b.setAttribute("role", "tab");
  b.setAttribute("aria-controls", "panel");
  b.addEventListener("click", () => choose(t));
  byId("tabs").append(b);
  return b;
});
byId("tabs").addEventListener("keydown", (e) => {
  const i = tables.indexOf(table), n = tables.length;
  const to = { ArrowRight: (i + 1) % n, ArrowLeft: (i + n - 1) % n, Home: 0, End: n - 1 }[e.key];
  if (to === undefined) return;
  e.preventDefault();
  choose(tables[to]);
  tabs[to].focus();
});

function choose(t) {
  table = t;
  tabs.forEach((b, i) => {
    b.setAttribute("aria-selected", String(tables[i] === t));
    b.tabIndex = tables[i] === t ? 0 : -1;
  });
  byId("panel").setAttribute("aria-labelledby", "tab-" + t.id);
  byId("caption").textContent = t.title;
  const row = make("tr");
  for (const c of t.columns) {
    const th = make("th", c.word ? "word" : ""), b = make("button", "", c.title);
    th.scope = "col";
    b.type = "button";
    b.addEventListener("click", () => {
      t.down = t.sort === c.field ? !t.down : !c.word;
      t.sort = c.field;
      mark();
      fill();
    });
    th.append(b);
    row.append(th);
  }
  byId("head").replaceChildren(row);
  byId("body").replaceChildren();
  mark();
  fill();
}

function mark() {
  const cells = byId("head").rows[0].cells;
  table.columns.forEach((c, i) => {
    if (c.field === table.sort) cells[i].setAttribute("aria-sort", table.down ? "descending" : "ascending");
    else cells[i].removeAttribute("aria-sort");
  });
}

// fill writes the rows of the chosen table, each into the row that is there already.
function fill() {
  if (!answer) return;
  const sought = byId("filter").value.trim().toLowerCase(), idle = byId("idle").checked;
  const all = answer[table.id];
  const rows = all.filter((r) => (idle || !table.idle(r)) && (!sought || table.columns.some((c) => c.word && String(r[c.field] ?? "").toLowerCase().includes(sought))));
  const key = table.sort, turn = table.down ? -1 : 1;
  rows.sort((a, b) => {
    const x = a[key] ?? "", y = b[key] ?? "";
    const c = typeof x === "number" ? x - y : x < y ? -1 : x > y ? 1 : 0;
    if (c !== 0) return c * turn;
    const first = table.columns[0].field;
    return a[first] < b[first] ? -1 : a[first] > b[first] ? 1 : 0;
  });
  const body = byId("body");
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((r, i) => {
    const tr = body.rows[i] ?? body.insertRow();
    table.columns.forEach((c, k) => {
      const td = tr.cells[k] ?? tr.insertCell();
      const value = r[c.field];
      const text = c.word ? value || "\u2013" : c.format(value);
      say(td, text);
      td.dataset.label = c.title;
      if (c.word && k === 0) td.title = text;
      td.className = c.word ? "word" : c.warn && value > 0 ? "warn" : "";
    });
  });
  const more = answer.more[table.id];
  const notes = [];
  if (all.length === 0) notes.push("Nothing yet.");
  else if (rows.length === 0) notes.push(sought ? "Nothing with that in it." : "Nothing happens at the moment.");
  if (more > 0) notes.push(`${more} more that do less are left out.`);
  say(byId("note"), notes.join(" "));
}

byId("filter").addEventListener("input", fill);
byId("idle").addEventListener("change", fill);

let paused = false;
byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
});

// problems shows remarks: what is wrong, and in words how bad it is.
const levels = { bad: "Problem: ", warn: "Warning: ", good: "" };
function problems(list) {
  const box = byId("problems");
  const texts = list.map((p) => levels[p.level] + p.text);
  if (box.childElementCount === list.length && texts.every((p, i) => box.children[i].textContent === p)) return;
  box.replaceChildren(...list.map((p, i) => make("p", "problem " + p.level, texts[i])));
}

// simple fills a table without sorting. Columns are titles, cells texts or nodes with their looks.
function simple(id, columns, rows, none) {
  if (byId(id + "-head").rows.length === 0) {
    const tr = make("tr");
    for (const [title, look] of columns) {
      const th = make("th", look, title);
      th.scope = "col";
      tr.append(th);
    }
    byId(id + "-head").append(tr);
  }
  const body = byId(id);
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, i) => {
    const tr = body.rows[i] ?? body.insertRow();
    cells.forEach(([value, look], k) => {
      const td = tr.cells[k] ?? tr.insertCell();
      td.dataset.label = columns[k][0];
      td.className = columns[k][1] + " " + (look ?? "");
      if (value instanceof Node) td.replaceChildren(value);
      else say(td, value);
    });
  });
  say(byId(id + "-note"), rows.length === 0 ? none : "");
}

function volumes(list) {
  simple("volumes", [["Export", "word"], ["State", "word"], ["Free", ""], ["Used", ""]], list.map((e) => {
    const used = e.size_bytes > 0 ? 1 - e.available_bytes / e.size_bytes : NaN;
    const files = e.files > 0 ? 1 - e.files_free / e.files : 0;
    const most = Math.max(used, files);
    const look = most >= 0.98 ? "warn" : most >= 0.9 ? "near" : "";
    const words = Number.isNaN(used) ? "\u2013" : `${Math.floor(used * 100)} %` + (look === "warn" ? ", full" : look === "near" ? ", nearly full" : "") + (files > used ? ` (inodes ${Math.floor(files * 100)} %)` : "");
    return [[e.name], e.error ? ["not served: " + e.error, "warn"] : ["served"], [Number.isNaN(used) ? "\u2013" : size(e.available_bytes)], [words, look]];
  }), "Nothing is exported.");
}

// split is a bar of where the time of a call went.
function split(c) {
  const svg = draw("svg", { class: "split", viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img" });
  const parts = [["queue", c.queue_us], ["rdma", c.rdma_us], ["store", c.store_us]];
  const rest = Math.max(c.took_us - c.queue_us - c.rdma_us - c.store_us, 0);
  parts.push(["rest", rest]);
  let at = 0;
  for (const [look, us] of parts) {
    const width = Math.min((us / Math.max(c.took_us, 1)) * 100, 100 - at);
    if (width > 0) svg.append(draw("rect", { x: at, y: 0, width, height: 8, class: look }));
    at += width;
  }
  svg.setAttribute("aria-label", parts.map(([name, us]) => name + " " + micros(us)).join(", "));
  return svg;
}

function slow(list) {
  simple("slow", [["Took", ""], ["Operation", "word"], ["Export", "word"], ["Client", "word"], ["Queue", ""], ["RDMA", ""], ["Store", ""], ["Where", "word"]], list.map((c) => [
    [micros(c.took_us), c.took_us >= 1e6 ? "warn" : c.took_us >= 1e5 ? "near" : ""], [c.operation], [c.export || "\u2013"], [c.client],
    [micros(c.queue_us)], [micros(c.rdma_us)], [micros(c.store_us)], [split(c)],
  ]), "No call yet.");
}

for (const [id, ms] of [["range-5", longMS], ["range-60", hourMS]]) {
  byId(id).addEventListener("click", () => {
    rangeMS = ms;
    byId("range-5").setAttribute("aria-pressed", String(ms === longMS));
    byId("range-60").setAttribute("aria-pressed", String(ms === hourMS));
    chart();
  });
}

function state(text, look) {
  say(byId("state"), text);
  byId("state").className = "pill " + look;
}

let history = [];
let seq = 0;

function show() {
  const v = answer;
  say(byId("host"), v.host ? "on " + v.host : "");
  document.title = (v.host ? v.host + " \u00b7 " : "") + "rstored";
  say(byId("uptime"), `up ${span(v.uptime_seconds)} \u00b7 ${v.version}` + (v.since_start ? " \u00b7 averages since the start" : ""));
  const bad = v.remarks.some((r) => r.level === "bad");
  if (bad) state("problems", "bad");
  else if (v.state !== "running") state(v.state, "bad");
  else if (v.remarks.length > 0) state("warnings", "near");
  else state("running", "good");
  problems(v.remarks.length > 0 ? v.remarks : [{ level: "good", text: "Healthy: all exports and ports are served, nothing is full, nothing is slow." }]);
  volumes(v.volumes);
  slow(v.slow);
  for (const f of tiles) f(v);
  for (const f of facts) f(v.server);
  chart();
  fill();
}

function chart() {
  if (answer) for (const f of charts) f(history, Date.parse(answer.taken));
}

async function step() {
  try {
    const res = await fetch("live?after=" + seq, { cache: "no-store", signal: AbortSignal.timeout(10000) });
    if (!res.ok) throw new Error("HTTP " + res.status);
    const a = await res.json();
    const last = history[history.length - 1];
    if (a.history.length > 0 && (a.history[0].seq > seq + 1 || (last && a.history[0].seq <= last.seq))) history = []; // of another process, or too old
    history.push(...a.history);
    if (a.history.length > 0) seq = a.history[a.history.length - 1].seq;
    const from = Date.parse(a.taken) - hourMS;
    history = history.filter((m) => m.time_ms >= from);
    if (!paused) {
      answer = a;
      show();
    }
  } catch (e) {
    state("no answer", "bad");
    problems([{ level: "bad", text: "The server does not answer: " + (e instanceof Error ? e.message : String(e)) }]);
  }
  setTimeout(step, stepMS);
}

new ResizeObserver(chart).observe(byId("charts"));
choose(table);
step();
