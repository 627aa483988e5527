// Where a key is asked for, and what may be done with the one that is there.

import {askJson, hasKey, isSendable, useKey} from "./access.js";
import {byId, setText} from "./dom.js";
import {shortened} from "./text.js";

const ODD_KEY = "A key has letters, digits and signs only, without spaces.";

/** The page as a login; nothing of the server is in it. */
export class Login {
  constructor(onKey) {
    this.onKey = onKey;
    byId("login-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit(byId("login-key").value);
    });
  }

  show(message = "") {
    byId("console").hidden = true;
    byId("login").hidden = false;
    setText(byId("login-error"), shortened(message, 300));
    byId("login-key").focus();
  }

  hide() {
    byId("login").hidden = true;
    byId("console").hidden = false;
    byId("login-key").value = "";
  }

  async submit(given) {
    if (!isSendable(given)) return setText(byId("login-error"), ODD_KEY);
    useKey(given);
    try {
      await askJson("v1/state");
    } catch (error) {
      if (error.status === 401 || error.status === 403) useKey("");
      return setText(byId("login-error"), error.status ? shortened(error.message, 300) : "The server does not answer; try again.");
    }
    setText(byId("login-error"), "");
    this.hide();
    this.onKey();
    return undefined;
  }
}

/** The dialog behind the button "Key": who one is, another key, none. */
export function startKeyDialog(onKey, viewerNow) {
  const dialog = byId("key-dialog");
  byId("key-button").addEventListener("click", () => {
    setText(byId("key-now"), whoIs(viewerNow()));
    byId("key-forget").hidden = !hasKey();
    byId("key-field").value = "";
    dialog.returnValue = "cancel";
    dialog.showModal();
    byId("key-field").focus();
  });
  byId("key-form").addEventListener("submit", (event) => {
    const given = byId("key-field").value;
    if ((event.submitter?.value ?? "use") === "use" && !isSendable(given)) {
      event.preventDefault();
      setText(byId("key-now"), ODD_KEY);
    }
  });
  byId("key-field").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;  // the first button of the form is another
    event.preventDefault();
    byId("key-form").requestSubmit(byId("key-form").querySelector("button[value=use]"));
  });
  dialog.addEventListener("close", () => {
    if (dialog.returnValue === "use") useKey(byId("key-field").value);
    else if (dialog.returnValue === "forget") useKey("");
    byId("key-field").value = "";
    if (dialog.returnValue === "use" || dialog.returnValue === "forget") onKey();
    byId("key-button").focus();
  });
}

function whoIs(viewer) {
  if (!viewer) return "Nothing is known yet.";
  if (viewer.is_admin) return "This is an admin's view: all of the server, and workers may be drained.";
  if (viewer.sees_all) return "This server has no keys: all of it is shown. Draining a worker takes an admin key.";
  return `This is the view of tenant ${shortened(viewer.tenant, 60)}: others are numbers.`;
}
