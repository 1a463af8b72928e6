"use strict";
// Keeps opened details open when htmx replaces the content of the page.
let opened = [];
document.addEventListener("htmx:beforeSwap", () => {
  opened = [...document.querySelectorAll("details[open][id]")].map((details) => details.id);
});
document.addEventListener("htmx:afterSettle", () => {
  for (const id of opened) {
    const details = document.getElementById(id);
    if (details) details.open = true;
  }
  followLogs();
});

// Streams of the page. A server has only six connections for all tabs, and the browser keeps pages that the user left: the streams of a page that is
// not visible are closed, and the page is loaded again when the user comes back.
const streams = new Set();
function openStream(url) {
  for (const source of streams) {
    if (source.readyState === EventSource.CLOSED) streams.delete(source);
  }
  const source = new EventSource(url);
  streams.add(source);
  return source;
}
if (window.htmx) window.htmx.createEventSource = openStream;
let isClosed = false;
function closeStreams() {
  isClosed = isClosed || streams.size > 0;
  for (const source of streams) source.close();
  streams.clear();
}
function loadAgain() {
  if (isClosed) location.reload();
}
window.addEventListener("pagehide", closeStreams);
window.addEventListener("pageshow", (event) => {
  if (event.persisted) loadAgain();
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) closeStreams();
  else loadAgain();
});

// Appends the log of an active run to elements with attribute data-log-stream. The server sends text, which is never parsed as HTML.
function followLogs() {
  for (const log of document.querySelectorAll("[data-log-stream]:not([data-follows])")) {
    log.setAttribute("data-follows", "");
    follow(log, log.getAttribute("data-log-stream"), "");
  }
}

function follow(log, url, last) {
  const source = openStream(last ? url + "?after=" + encodeURIComponent(last) : url);
  // Reading the scroll position for each event would lay out the whole log each time.
  let isAtEnd = true;
  let waits = false;
  log.addEventListener("scroll", () => {
    isAtEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 40;
  });
  source.addEventListener("log", (event) => {
    last = event.lastEventId || last;
    const part = document.createElement("span");
    part.className = "log-part";
    part.textContent = event.data + "\n";
    log.append(part);
    if (!isAtEnd || waits) return;
    waits = true;
    requestAnimationFrame(() => {
      waits = false;
      log.scrollTop = log.scrollHeight;
    });
  });
  source.addEventListener("end", () => {
    source.close();
    streams.delete(source);
    // The API server may show the end of the container later than the end of its log.
    if (log.hasAttribute("data-reload-at-end")) setTimeout(() => location.reload(), 1000);
  });
  source.addEventListener("stop", () => {
    source.close();
    streams.delete(source);
  });
  source.onerror = () => {
    // The browser reconnects with the id of the last event, unless the server refused the request.
    if (source.readyState !== EventSource.CLOSED) return;
    streams.delete(source);
    setTimeout(() => {
      if (log.isConnected && !document.hidden) follow(log, url, last);
    }, 5000);
  };
}

document.addEventListener("DOMContentLoaded", followLogs);

// Keeps relative times current, in the words of the server.
function amount(seconds) {
  if (seconds < 60) return seconds + " s";
  if (seconds < 3600) return Math.floor(seconds / 60) + " min";
  if (seconds < 172800) return Math.floor(seconds / 3600) + " h";
  return Math.floor(seconds / 86400) + " d";
}
setInterval(() => {
  if (document.hidden) return;
  for (const time of document.querySelectorAll("time[datetime]")) {
    const seconds = Math.round((Date.now() - Date.parse(time.dateTime)) / 1000);
    const text = amount(Math.abs(seconds));
    time.textContent = Math.abs(seconds) < 5 ? "now" : seconds > 0 ? text + " ago" : "in " + text;
  }
}, 5000);
