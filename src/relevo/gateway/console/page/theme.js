// Light or dark: as the system has it unless the viewer says otherwise; remembered on this device.

import {byId} from "./dom.js";

const STORED = "relevo-theme";
const CHOICES = ["auto", "light", "dark"];

export function startTheme() {
  const choice = byId("theme");
  choice.value = stored();
  apply(choice.value);
  choice.addEventListener("change", () => {
    apply(choice.value);
    try {
      localStorage.setItem(STORED, choice.value);
    } catch {
      // storage is forbidden here: it holds until the page is closed
    }
  });
}

function stored() {
  try {
    const found = localStorage.getItem(STORED);
    return CHOICES.includes(found) ? found : "auto";
  } catch {
    return "auto";
  }
}

function apply(choice) {
  if (choice === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
}
