// Dialogs: what will happen before it does, and the token.

import { h, setText } from "./dom.js";

function open(dialog, onclose) {
  dialog.addEventListener("close", () => {
    dialog.remove();
    onclose(dialog.returnValue);
  });
  document.body.append(dialog);
  dialog.showModal();
}

/** Says what will happen, and does it only then. What goes wrong stays on view. */
export function confirm({ title, says, action, run, done }) {
  const opener = document.activeElement;
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const go = h("button", { type: "button", class: "danger", onclick: act }, action);
  const cancel = h("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "Cancel");
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" },
    h("h2", { id: "dialog-title" }, title), says.map((text) => h("p", null, text)), problem,
    h("div", { class: "buttons" }, cancel, go));
  async function act() {
    go.disabled = true;
    problem.hidden = true;
    try {
      const answer = await run();
      dialog.close("done");
      announce(typeof done === "function" ? done(answer) : done);
    } catch (error) {
      go.disabled = false;
      problem.hidden = false;
      setText(problem, error.isRefusal ? `You may not do this: ${error.message}` : `It was not done: ${error.message}`);
    }
  }
  open(dialog, () => opener?.isConnected && opener.focus());
}

/** Asks for a bearer token; resolves to it, or to nothing. */
export function askForToken(refused) {
  const field = h("input", { type: "password", id: "token", name: "token", autocomplete: "off", spellcheck: "false", required: true, autofocus: true });
  const form = h("form", { onsubmit: submit },
    h("h2", { id: "dialog-title" }, "Log in"),
    h("p", null, "This cluster asks who you are. Paste a token that an admin made for you. It is kept in this page's memory, and gone when the page is closed or loaded anew."),
    refused ? h("p", { class: "problem", role: "alert" }, "The node refused the token that you gave.") : null,
    h("label", { for: "token" }, "Token"), field,
    h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), h("button", { type: "submit", class: "main" }, "Log in")));
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, form);
  let given;
  function submit(event) {
    event.preventDefault();
    given = field.value.trim();
    dialog.close();
  }
  return new Promise((resolve) => open(dialog, () => resolve(given || undefined)));
}

let fading;

/** Tells what was done: seen for a while, and read out. */
export function announce(text) {
  const spoken = document.getElementById("spoken");
  setText(spoken, text);
  spoken.className = "toast";
  clearTimeout(fading);
  fading = setTimeout(() => (spoken.className = "spoken"), 6000);
}
