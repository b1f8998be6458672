// The nodes, and what an admin does with them.

import { post, remove } from "../api.js";
import { ask, cluster, follow, quorum } from "../cluster.js";
import { confirm } from "../dialogs.js";
import { bytes, h, latency, name, show } from "../dom.js";
import { disk, lag, lastAnswer, refused, role } from "./overview.js";

export default function nodes({ main }) {
  const place = h("section", { "aria-label": "Nodes" });
  main.append(h("h1", null, "Cluster"), place);
  show(place, h("p", { class: "weak" }, "Asking the nodes…"));
  return follow(() => {
    const { status, error } = cluster;
    if (error?.isRefusal || error?.status === 401) show(place, refused(error, "the nodes"));
    if (status && !error) show(place, ...content(status));
  });
}

function content(status) {
  const { voters, answering, needed } = quorum(status);
  return [
    h("dl", { class: "facts" },
      fact("Cluster", h("code", null, status.clusterId)), fact("Leader", status.leaderId ? name(status.leaderId) : "none is known"),
      fact("Quorum", `${answering} of ${voters} voting nodes answer, ${needed} are needed`)),
    h("ul", { class: "cards" }, status.nodes.map((node) => card(status, node))),
    h("p", { class: "weak hint" }, "A node is added where it runs: ", h("code", null, "lowkey member invite"), " here, and ", h("code", null, "--join-token-file"), " there."),
  ];
}

function card(status, node) {
  const { member } = node;
  const known = !node.problem;
  const here = member.nodeId === status.nodeId ? h("span", { class: "weak" }, " · this page") : null;
  return h("li", { class: known ? "card" : "card gone" },
    h("h2", null, h("span", null, name(member.nodeId), here), role(node)),
    known ? null : h("p", { class: "problem" }, node.problem),
    h("dl", null,
      fact("Votes", member.voter ? "yes" : "not yet"),
      fact("Term", known ? node.term : "–"), fact("Applied", known ? node.appliedIndex : "–"), fact("Lag", lag(node, status)),
      fact("Version", node.version || "–"), fact("Disk free", disk(node)), fact("Memory", known ? bytes(node.memoryBytes) : "–"),
      fact("Watches", known ? node.watchStreams : "–"), fact("Last answer", [lastAnswer(node), known ? `, took ${latency(Number(node.answeredInUs))}` : ""]),
      [["HTTP", member.httpAddress], ["gRPC", member.grpcAddress], ["Peers", member.raftAddress]].map(([what, address]) => address && fact(what, address))),
    h("div", { class: "actions" },
      member.leader || !member.voter ? null : h("button", { type: "button", id: `lead-${member.memberId}`, onclick: () => lead(status, node) }, "Make leader…"),
      h("button", { type: "button", id: `remove-${member.memberId}`, class: "danger", onclick: () => leave(status, node) }, "Remove…")));
}

const fact = (label, value) => h("div", null, h("dt", null, label), h("dd", null, value));

function lead(status, node) {
  const { nodeId } = node.member;
  confirm({
    title: `Make ${nodeId} the leader?`,
    says: [
      `${status.leaderId || "The leader"} hands the lead over, which takes a moment. Calls wait meanwhile, and none is lost.`,
      "No lock and no lease ends by this. Leases live up to one TTL longer than usual, since the new leader counts anew.",
      ...(node.problem ? [`${nodeId} does not answer just now, so this will probably fail; then nothing changes.`] : []),
    ],
    action: `Make ${nodeId} the leader`,
    run: () => post("/v1/cluster/transfer", { nodeId }).finally(ask),
    done: (answer) => `${answer.leaderId} leads.`,
  });
}

function leave(status, node) {
  const { nodeId, voter, leader, memberId } = node.member;
  const { voters } = quorum(status);
  const left = voters - (voter ? 1 : 0);
  confirm({
    title: `Remove ${nodeId}?`,
    says: [
      `${nodeId} (number ${memberId}) leaves the cluster for good, and its process ends. To come back it needs an empty data directory and an invitation.`,
      voter ? `${left} voting ${left === 1 ? "node is" : "nodes are"} left, of which ${Math.floor(left / 2) + 1} must answer${left < 3 ? ": the loss of one more stops the cluster" : ""}.` : "It does not vote: the quorum stays as it is.",
      ...(leader ? ["It leads, and hands the lead over first."] : []),
      ...(nodeId === status.nodeId ? ["This page comes from it, and ends with it: open the page of another node."] : []),
    ],
    action: `Remove ${nodeId}`,
    run: () => remove(`/v1/cluster/peers/${encodeURIComponent(nodeId)}`).finally(ask),
    done: `${nodeId} is removed.`,
  });
}
