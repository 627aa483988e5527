// Taking a worker out of rotation: asked for once more, then said what came of it.

import {askJson} from "./access.js";
import {byId, el, setText} from "./dom.js";
import {shortened} from "./text.js";

const SAID_MS = 12_000;

export class Drain {
  constructor(notice) {
    this.notice = notice;
    this.dialog = byId("drain-dialog");
    this.asked = null;
    this.dialog.addEventListener("close", () => {
      if (this.dialog.returnValue === "drain") this.drain(this.asked);
    });
  }

  /** A button in a cell, for viewers who may. */
  draw(cell, worker, mayDrain) {
    if (!mayDrain) return cell.replaceChildren();
    if (cell.firstElementChild === null) cell.append(el("button", {type: "button", text: "Drain", className: "small"}));
    const button = cell.firstElementChild;
    button.disabled = !worker.is_ready;
    button.setAttribute("aria-label", `Drain ${shortened(worker.worker_id, 40)}`);
    button.onclick = () => this.ask(worker);
    return undefined;
  }

  ask(worker) {
    this.asked = worker.worker_id;
    setText(byId("drain-title"), `Drain ${shortened(worker.worker_id, 60)}?`);
    setText(byId("drain-last"), worker.isLast ? `It is the only ready ${worker.role} worker of its model: requests wait until it is back.` : "");
    this.dialog.returnValue = "cancel";
    this.dialog.showModal();
  }

  async drain(workerId) {
    const name = shortened(workerId, 60);
    try {
      await askJson(`admin/drain/${encodeURIComponent(workerId)}`, {method: "POST"});
      this.notice.say(`${name} was asked to drain; it comes back as a new process.`, "", SAID_MS);
    } catch (error) {
      this.notice.say(`${name} was not drained: ${error.status ? shortened(error.message, 300) : "the server does not answer"}`, "lost", SAID_MS);
    }
  }
}
