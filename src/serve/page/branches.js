// What the server tells of the branches, put together: who was born when, from which proposal, how deep it went, how it ended.
// Time is counted in recurrences; a branch that was given up before its first one is not counted. See src/decode/trace.h for the events.

// "271 drafted = 208 accepted + 61 thrown away + 2 open": every draft is in one of them.
export function describeDrafts({ drafted, accepted, discarded, unneeded }) {
  const open = drafted - accepted - discarded - unneeded;
  const parts = [`${accepted} accepted`, `${discarded} thrown away`];
  if (unneeded > 0) parts.push(`${unneeded} past the end`);
  if (open > 0) parts.push(`${open} open`);
  return `${drafted} drafted = ${parts.join(' + ')}`;
}

export class Branches {
  constructor() {
    this.all = []; // those that have advanced, in the order of their first recurrence
    this.first = null;
    this.step = 0; // recurrences done
    this.lanes = 0; // branches beside each other at most
    // drafted = accepted + discarded + unneeded + those whose branch is still being computed.
    this.counts = { drafted: 0, accepted: 0, discarded: 0, unneeded: 0, fallback: 0, rows: 0 };
    this.live = new Map(); // by number
    this.taken = []; // lanes in use
  }

  add(event) {
    this.step = Math.max(this.step, event.step);
    if (event.kind === 'spawn') {
      this.spawn(event);
      return;
    }
    const branch = this.live.get(event.branch);
    if (!branch) return;
    switch (event.kind) {
      case 'advance':
        if (branch.lane < 0) this.place(branch, event.step);
        branch.advances.push({ from: event.step, to: event.step + event.recurrences, depth: event.depth });
        branch.depth = event.depth;
        this.counts.rows += event.recurrences;
        this.step = Math.max(this.step, event.step + event.recurrences);
        break;
      case 'draft':
        this.counts.drafted += 1;
        branch.drafts.push({ step: event.step, text: event.text, proposal: event.proposal });
        break;
      case 'adopt':
        for (const child of this.live.values()) {
          if (child.parent === branch.number && child.token === event.token) child.source = event.proposal;
        }
        break;
      case 'accept':
      case 'fallback':
        this.decide(branch, event);
        break;
      case 'prune':
        this.counts.discarded += branch.drafts.length; // they continue a text that will not be
        this.end(branch, 'pruned', event.step);
        break;
      default: // gate_closed
        break;
    }
  }

  spawn(event) {
    const root = event.parent < 0;
    const branch = {
      number: event.branch,
      parent: event.parent,
      token: event.token,
      text: event.text ?? '',
      position: event.position,
      source: event.proposal, // 0 with a parent: a guess
      early: !root && event.proposal === 0,
      prompt: root && !this.first, // the prompt's last token
      committed: root,
      lane: -1, // none before it advances: many never do
      parentLane: -1,
      born: event.step,
      end: null,
      state: 'live', // live, verified, pruned, unused
      depth: 0,
      advances: [],
      drafts: [],
    };
    this.first ??= branch;
    this.live.set(branch.number, branch);
  }

  place(branch, step) {
    let lane = this.taken.indexOf(false);
    if (lane < 0) lane = this.taken.length;
    this.taken[lane] = true;
    this.lanes = Math.max(this.lanes, lane + 1);
    branch.lane = lane;
    branch.parentLane = this.live.get(branch.parent)?.lane ?? -1;
    branch.born = step;
    this.all.push(branch);
  }

  // `branch` has been verified, and its next token is decided.
  decide(branch, event) {
    const accepted = event.kind === 'accept' ? 1 : 0;
    this.counts.accepted += accepted;
    this.counts.fallback += 1 - accepted;
    this.counts.discarded += branch.drafts.length - accepted;
    branch.next = event.text;
    for (const child of this.live.values()) {
      if (child.parent === branch.number && child.token === event.token && child.position === event.position) {
        child.committed = true;
        child.source = event.proposal;
      }
    }
    this.end(branch, 'verified', event.step);
  }

  end(branch, state, step) {
    branch.state = state;
    branch.end = step;
    this.live.delete(branch.number);
    if (branch.lane >= 0) this.taken[branch.lane] = false;
  }

  // The answer is complete: what still ran is not needed.
  finish() {
    for (const branch of [...this.live.values()]) {
      this.counts.unneeded += branch.drafts.length;
      this.end(branch, 'unused', this.step);
    }
  }

  // Branches that went through recurrence `step`, with the depth they reached in it.
  at(step) {
    const rows = [];
    for (let i = this.firstAfter(step); i < this.all.length; ++i) {
      const branch = this.all[i];
      if (branch.born > step) break;
      const advance = branch.advances.find((a) => a.from <= step && step < a.to);
      if (advance) rows.push({ branch, depth: advance.depth - (advance.to - step - 1) });
    }
    return rows;
  }

  // The first branch that can have lived at `step` or later: births are in order, lives are short.
  firstAfter(step) {
    let low = 0;
    let high = this.all.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.all[middle].born < step) low = middle + 1;
      else high = middle;
    }
    while (low > 0 && this.overlaps(low, step)) low -= 1;
    return low;
  }

  overlaps(index, step) {
    for (let i = Math.max(0, index - 64); i < index; ++i) {
      const { end } = this.all[i];
      if (end === null || end >= step) return true;
    }
    return false;
  }
}
