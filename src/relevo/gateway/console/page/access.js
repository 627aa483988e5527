// The key and what is asked with it. Kept in memory and in this tab's sessionStorage, never in a cookie or an address,
// and sent to this page's own server alone.

const STORED = "relevo-key";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let key = read();

function read() {
  try {
    return sessionStorage.getItem(STORED) ?? "";
  } catch {
    return "";  // storage is forbidden here: the key lives as long as the page
  }
}

export const hasKey = () => key !== "";

export function useKey(given) {
  key = given.trim();
  try {
    if (key) sessionStorage.setItem(STORED, key);
    else sessionStorage.removeItem(STORED);
  } catch {
    // as above
  }
}

/** A header's value is Latin-1 without control characters; the browser would raise a TypeError for anything else. */
export const isSendable = (given) => /^[\x21-\x7e]{1,4096}$/.test(given.trim());

/** Addresses are below the page's own, whatever prefix a proxy has put there. */
export function ask(path, options = {}) {
  const headers = {...options.headers};
  if (key) headers.authorization = `Bearer ${key}`;
  return fetch(new URL(path, document.baseURI), {
    ...options, headers, cache: "no-store", credentials: "omit", redirect: "error", referrerPolicy: "no-referrer",
  });
}

/** JSON of a path. Throws Refused in the server's own words. */
export async function askJson(path, options = {}) {
  const response = await ask(path, options);
  if (!response.ok) throw await refusal(response);
  return response.json();
}

export async function refusal(response) {
  let message = `HTTP ${response.status}`;
  try {
    const body = await response.json();
    message = String(body?.error?.message ?? body?.message ?? message);
  } catch {
    // it is no JSON: the status says what there is to say
  }
  return new Refused(response.status, message);
}
