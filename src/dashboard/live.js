// Keeps the marked parts of the page fresh: fetches the same address now and then and takes over what has changed.
"use strict";
(() => {
  const every = Number(document.body.dataset.fresh);
  const sign = document.getElementById("live");
  const toggle = document.createElement("button");
  let paused = false;
  let failures = 0;
  let timer = 0;

  const say = (text, state) => {
    if (sign.textContent !== text) sign.textContent = text;
    sign.dataset.state = state;
  };

  // What somebody points at, types into or selects stays as it is.
  const inUse = (part) => {
    const fields = [...part.querySelectorAll("input, textarea")];
    if (fields.some((field) => field.value !== field.defaultValue || field.checked !== field.defaultChecked)) return true;
    const chosen = document.getSelection();
    return part.contains(document.activeElement) || part.querySelector(":active, details[open]") ||
      (chosen && !chosen.isCollapsed && part.contains(chosen.anchorNode));
  };

  const takeOver = (text) => {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const next = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
      if (next && !inUse(part) && part.innerHTML !== next.innerHTML) part.innerHTML = next.innerHTML;
    }
  };

  const look = async () => {
    if (!paused && !document.hidden) {
      try {
        const answer = await fetch(location.href, { redirect: "manual", signal: AbortSignal.timeout(10000) });
        if (answer.type === "opaqueredirect") return location.reload();
        if (!answer.ok) throw new Error(String(answer.status));
        takeOver(await answer.text());
        failures = 0;
        say("Live", "on");
      } catch {
        failures += 1;
        say("No answer", "off");
      }
    }
    schedule();
  };

  const schedule = () => {
    clearTimeout(timer);
    timer = setTimeout(look, Math.min(every * 2 ** Math.min(failures, 4), 30000));
  };

  toggle.type = "button";
  toggle.className = "quiet";
  toggle.textContent = "Hold";
  toggle.setAttribute("aria-pressed", "false");
  toggle.addEventListener("click", () => {
    paused = !paused;
    toggle.setAttribute("aria-pressed", String(paused));
    say(paused ? "Held" : "Live", paused ? "held" : "on");
    if (!paused) look();
  });
  sign.after(toggle);
  document.addEventListener("visibilitychange", () => document.hidden || look());
  say("Live", "on");
  schedule();
})();
