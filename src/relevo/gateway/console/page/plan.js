// Places of what is not there yet: a planner's decisions, and machines.

import {byId, setText} from "./dom.js";

export class Plan {
  show(state) {
    setText(byId("plan-none"), state.plan === null
      ? "No planner runs: the number of workers and their roles are what the server was started with."
      : "A planner runs that this console does not know; GET /v1/state tells of it.");
    setText(byId("nodes-none"), state.nodes.length
      ? "There are nodes that this console does not know; GET /v1/state tells of them."
      : "There is one machine, this one: every worker runs where the gateway runs.");
  }
}
