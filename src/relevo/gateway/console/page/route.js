// Which view the address names: `#view` or `#view/rest`. Shows it, marks its link, and gives its heading the focus.

import {byId} from "./dom.js";

export class Router {
  /** `views`: by name; `onView(name, rest)`. */
  constructor(names, onView) {
    this.names = names;
    this.onView = onView;
    this.now = "";
    addEventListener("hashchange", () => this.go(true));
    byId("skip").addEventListener("click", (event) => {
      event.preventDefault();  // its target is no view
      byId("main").focus();
    });
  }

  go(takesFocus = false) {
    const [asked, ...rest] = location.hash.slice(1).split("/");
    const name = this.names.includes(asked) ? asked : this.names[0];
    for (const each of this.names) byId(`view-${each}`).hidden = each !== name;
    for (const link of document.querySelectorAll("nav.views a")) {
      const isNow = link.hash === `#${name}`;
      if (isNow) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
      if (isNow) link.scrollIntoView({block: "nearest", inline: "nearest"});
    }
    const isOther = name !== this.now;
    this.now = name;
    this.onView(name, decoded(rest.join("/")));
    if (takesFocus && isOther) byId(`h-${name}`).focus({preventScroll: false});
    document.title = `${byId(`h-${name}`).textContent} \u00b7 Relevo console`;
  }
}

function decoded(rest) {
  try {
    return decodeURIComponent(rest);
  } catch {
    return rest;  // a percent sign of its own
  }
}
