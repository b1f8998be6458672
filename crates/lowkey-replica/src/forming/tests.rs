use lowkey_core::NodeName;

use super::*;

/// How many there are to be, and with which tick.
const THREE: (usize, RaftTick) = (3, RaftTick::SHORTEST);

const CHANCE: Chance = Chance { cluster: ClusterId([7; 16]), spread: 0, unix_minutes: 100 };

fn node(name: &str, identity: u8) -> NodeInfo {
    NodeInfo {
        name: NodeName::parse(name).unwrap(),
        identity: Some(NodeIdentity([identity; 16])),
        raft_address: "a:1".into(),
        grpc_address: "a:2".into(),
        http_address: "a:3".into(),
        command_version: 1,
        key_hash: None,
    }
}

fn forming(name: &str, identity: u8) -> Forming {
    Forming::new(NodeIdentity([identity; 16]), node(name, identity), THREE, Memory::default())
}

fn three() -> Vec<Forming> {
    vec![forming("n1", 1), forming("n2", 2), forming("n3", 3)]
}

/// Lets one look at these others until it waits or is done; what it is told to keep is kept at once.
fn look(nodes: &mut [Forming], looker: usize, at: &[usize]) -> Step {
    let heard: Vec<Statement> = at.iter().map(|other| nodes[*other].statement(100)).collect();
    loop {
        match nodes[looker].look(&heard, CHANCE) {
            Step::Keep(memory) => nodes[looker].kept(memory),
            step => return step,
        }
    }
}

fn plan_of(step: Step) -> Plan {
    match step {
        Step::Found(plan) => *plan,
        other => panic!("nothing was founded: {other:?}"),
    }
}

#[test]
fn three_that_see_each_other_found_one_cluster_with_all_of_them() {
    let mut nodes = three();
    assert!(matches!(look(&mut nodes, 1, &[0]), Step::Wait(Waiting::Others { .. })));
    assert!(matches!(look(&mut nodes, 1, &[0, 2]), Step::Wait(Waiting::Plan { .. })));
    assert!(matches!(look(&mut nodes, 0, &[1, 2]), Step::Wait(Waiting::Promises { .. })));
    assert!(matches!(look(&mut nodes, 1, &[0, 2]), Step::Wait(Waiting::Decision { .. })));
    assert!(matches!(look(&mut nodes, 0, &[1, 2]), Step::Wait(Waiting::Promises { of }) if of.len() == 1));
    assert!(matches!(look(&mut nodes, 2, &[0, 1]), Step::Wait(Waiting::Decision { .. })));
    let plan = plan_of(look(&mut nodes, 0, &[1, 2]));
    assert_eq!(plan_of(look(&mut nodes, 1, &[0])), plan);
    // The coordinator need not be there any more.
    assert_eq!(plan_of(look(&mut nodes, 2, &[1])), plan);
    assert_eq!((plan.nodes.len(), plan.member(NodeIdentity([3; 16]))), (3, Some(MemberId(3))));
}

#[test]
fn a_node_that_was_wiped_hears_of_the_cluster_and_remembers_that_for_those_that_are_wiped_later() {
    let mut nodes = three();
    for (looker, others) in [(0, [1, 2]), (1, [0, 2]), (2, [0, 1]), (0, [1, 2]), (1, [0, 2]), (2, [0, 1])] {
        look(&mut nodes, looker, &others);
    }
    let cluster = CHANCE.cluster;
    for (wiped, name) in [(2, "n3"), (1, "n2"), (0, "n1")] {
        nodes[wiped] = forming(name, 10 + wiped as u8);
        let others: Vec<usize> = (0..3).filter(|other| *other != wiped).collect();
        assert_eq!(look(&mut nodes, wiped, &others), Step::Join(cluster));
    }
}

/// All have promised, and nobody has heard what came of it.
fn promised() -> Vec<Forming> {
    let mut nodes = three();
    for (looker, others) in [(0, [1, 2]), (1, [0, 2]), (2, [0, 1])] {
        look(&mut nodes, looker, &others);
    }
    nodes
}

#[test]
fn a_coordinator_that_was_wiped_is_given_up_by_as_many_as_a_majority_cannot_do_without() {
    let mut nodes = promised();
    nodes[0] = forming("n1", 10);
    assert!(matches!(look(&mut nodes, 0, &[1, 2]), Step::Wait(Waiting::Promises { .. })));
    assert!(matches!(look(&mut nodes, 1, &[0, 2]), Step::Wait(Waiting::InDoubt { .. })));
    assert!(matches!(look(&mut nodes, 2, &[0, 1]), Step::Wait(Waiting::Decision { .. })));
    assert!(matches!(look(&mut nodes, 1, &[0, 2]), Step::Wait(Waiting::Decision { .. })));
    let plan = plan_of(look(&mut nodes, 0, &[1, 2]));
    assert_eq!(plan.attempt.coordinator, NodeIdentity([10; 16]));
    assert_eq!(plan_of(look(&mut nodes, 2, &[0])), plan);
}

#[test]
fn who_is_left_alone_with_a_promise_stays_in_doubt() {
    let mut nodes = promised();
    (nodes[0], nodes[1]) = (forming("n1", 10), forming("n2", 20));
    for _ in 0..3 {
        assert!(matches!(look(&mut nodes, 0, &[1, 2]), Step::Wait(Waiting::Promises { .. })));
        assert!(matches!(look(&mut nodes, 1, &[0, 2]), Step::Wait(Waiting::Decision { .. })));
        let Step::Wait(waiting) = look(&mut nodes, 2, &[0, 1]) else { panic!("it is in doubt") };
        assert!(waiting.needs_a_person() && waiting.to_string().contains("n3"), "{waiting}");
    }
}

#[test]
fn a_coordinator_that_comes_back_begins_another_attempt() {
    let mut nodes = promised();
    let memory = nodes[0].memory().clone();
    nodes[0] = Forming::new(NodeIdentity([1; 16]), node("n1", 1), THREE, memory);
    for (looker, others) in [(0, [1, 2]), (1, [0, 2]), (2, [0, 1])] {
        look(&mut nodes, looker, &others);
    }
    assert_eq!(plan_of(look(&mut nodes, 0, &[1, 2])).attempt.number, 2);
}

#[test]
fn what_was_set_up_wrongly_is_told_and_nothing_is_founded() {
    let waiting = |mut nodes: Vec<Forming>, others: &[usize]| match look(&mut nodes, 0, others) {
        Step::Wait(waiting) => waiting,
        step => panic!("it does not wait: {step:?}"),
    };
    let four = vec![forming("n1", 1), forming("n2", 2), forming("n3", 3), forming("n4", 4)];
    assert!(matches!(waiting(four, &[1, 2, 3]), Waiting::TooMany { .. }));
    let twins = vec![forming("n1", 1), forming("n2", 2), forming("n2", 3)];
    assert!(matches!(waiting(twins, &[1, 2]), Waiting::SameName { .. }));
    let third = |told| Forming::new(NodeIdentity([3; 16]), node("n3", 3), told, Memory::default());
    let other = vec![forming("n1", 1), forming("n2", 2), third((5, RaftTick::default()))];
    assert!(matches!(waiting(other, &[1, 2]), Waiting::OtherSize { theirs: 5, .. }));
    let slow = third((3, RaftTick::from_millis(50).unwrap()));
    let told = waiting(vec![forming("n1", 1), forming("n2", 2), slow], &[1, 2]);
    assert!(told.needs_a_person());
    assert_eq!(told.to_string(), "--raft-tick is 10ms here and 50ms at n3: give all nodes the same value");
}
