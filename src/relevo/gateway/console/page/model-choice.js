// Which models are shown: one, or all of them.

import {byId, el} from "./dom.js";
import {shortened} from "./text.js";

export class ModelChoice {
  constructor(onChange) {
    this.names = null;
    this.node = byId("model-choice");
    this.node.addEventListener("change", onChange);
  }

  /** `has(model)`; `one`: the name, empty for all together. */
  of(state) {
    const names = state.models.map((model) => model.name);
    if (names.join("\u0000") !== this.names) {
      this.names = names.join("\u0000");
      const before = this.node.value;
      this.node.replaceChildren(el("option", {value: "", text: "all"}), ...names.map((name) => el("option", {value: name, text: shortened(name, 40)})));
      this.node.value = names.includes(before) ? before : "";
    }
    const one = this.node.value;
    return {one, has: (model) => one === "" || model === one};
  }
}
