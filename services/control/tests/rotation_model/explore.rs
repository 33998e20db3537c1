//! Explores the model: breadth first with every possible move from each state, up to a number of states, and with
//! random walks.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use pillion_control::certificates::rotation::{Phase, Settings, Stored};

use crate::rotation_model::leader::{Leader, decide, write};
use crate::rotation_model::world::{
    API_SERVERS, BundleVersion, CertificateVersion, Disturbance, FOREIGN_CA, ModelState, REPLICAS, Reading, Replica,
    Rules,
};

/// Maximum number of writes until an undisturbed rotation is complete.
const MAX_REST_MOVES: usize = 120;

/// A move of a leader, a replica or an API server, or a disturbance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    Reads(usize),
    /// The leader reads the record and decides. The flags are whether all deadlines have passed, and whether a rotation
    /// is requested.
    Decides(usize, bool, bool),
    Writes(usize),
    Dies(usize),
    ApiServerSees(usize),
    ApiServerStops,
    ApiServerContinues,
    ReplicaSees(usize),
    ReplicaRestarts(usize),
    Vandal(Disturbance),
}

#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) what: String,
    pub(crate) way: Vec<Move>,
}

#[derive(Debug, Default)]
pub(crate) struct Explored {
    pub(crate) states: usize,
    pub(crate) at_rest: usize,
    pub(crate) phases: BTreeSet<Phase>,
    pub(crate) found: Option<Found>,
}

impl Explored {
    pub(crate) fn assert_sound(&self) {
        if let Some(Found { what, way }) = &self.found {
            panic!("{what}\nafter {} moves:\n{way:#?}", way.len());
        }
    }
}

pub(crate) fn explore(rules: Rules, disturbances: &[Disturbance], limit: usize) -> Explored {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let settings = Settings::default();
    let mut explored = Explored::default();
    // The predecessor of each state, by hash. Collisions among a million states are unlikely.
    let mut from: HashMap<u64, Option<(u64, Move)>> = HashMap::new();
    let mut queue = VecDeque::new();
    let first = ModelState::new();
    from.insert(hasher.hash_one(&first), None);
    queue.push_back(first);
    while let Some(world) = queue.pop_front() {
        let here = hasher.hash_one(&world);
        explored.states += 1;
        explored.at_rest += usize::from(world.at_rest());
        if let Stored::Is(record) = &world.record {
            explored.phases.insert(record.phase);
        }
        let wrong = world.broken_trust().or_else(|| world.went_backwards());
        // Check only some of the states for whether the rotation completes from there, since this check is expensive.
        let wrong =
            wrong.or_else(|| (explored.states % 16 == 0).then(|| never_rests(&world, rules, &settings)).flatten());
        if let Some(what) = wrong {
            explored.found = Some(Found { what, way: way_to(here, &from) });
            return explored;
        }
        for (step, next) in moves(&world, rules, &settings, disturbances) {
            let hash = hasher.hash_one(&next);
            if from.len() < limit
                && let std::collections::hash_map::Entry::Vacant(vacant) = from.entry(hash)
            {
                vacant.insert(Some((here, step)));
                queue.push_back(next);
            }
        }
    }
    explored
}

/// Walks at random from the initial state, and so reaches states that a complete exploration cannot reach in time. The
/// walks are the same in each run.
pub(crate) fn walk(rules: Rules, disturbances: &[Disturbance], walks: u64, length: usize) -> Explored {
    let settings = Settings::default();
    let mut explored = Explored::default();
    for number in 0..walks {
        let (mut world, mut way) = (ModelState::new(), Vec::new());
        let mut random = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for _ in 0..length {
            explored.states += 1;
            explored.at_rest += usize::from(world.at_rest());
            if let Stored::Is(record) = &world.record {
                explored.phases.insert(record.phase);
            }
            if let Some(what) = world.broken_trust().or_else(|| world.went_backwards()) {
                explored.found = Some(Found { what, way });
                return explored;
            }
            let mut moves = moves(&world, rules, &settings, disturbances);
            // A xorshift generator.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let (step, next) = moves.swap_remove((random % moves.len() as u64) as usize);
            way.push(step);
            world = next;
        }
        if let Some(what) = never_rests(&world, rules, &settings) {
            explored.found = Some(Found { what, way });
            return explored;
        }
    }
    explored
}

fn way_to(state: u64, from: &HashMap<u64, Option<(u64, Move)>>) -> Vec<Move> {
    let mut way = Vec::new();
    let mut at = state;
    while let Some(Some((before, step))) = from.get(&at) {
        way.push(*step);
        at = *before;
    }
    way.reverse();
    way
}

fn moves(
    world: &ModelState,
    rules: Rules,
    settings: &Settings,
    disturbances: &[Disturbance],
) -> Vec<(Move, ModelState)> {
    let mut moves = Vec::new();
    let mut add = |step: Move, mut next: ModelState| {
        next.forget();
        moves.push((step, next));
    };
    for (number, leader) in world.leaders.iter().enumerate() {
        let with = |leader: Leader| {
            let mut next = world.clone();
            next.leaders[number] = leader;
            next
        };
        match leader {
            Leader::Idle => add(Move::Reads(number), with(Leader::Read(Reading::of(world)))),
            Leader::Read(reading) => {
                for (late, asked) in [(false, false), (false, true), (true, false)] {
                    // If the API servers cannot be listed, deadlines pass only after every running API server has seen
                    // the bundle that was read.
                    if late && world.uncounted && !world.have_seen(reading.bundle_version) {
                        continue;
                    }
                    let decided = decide(world, reading, rules, settings, (late, asked));
                    let leader = decided.map_or(Leader::Idle, Leader::Writing);
                    add(Move::Decides(number, late, asked), with(leader));
                }
            }
            Leader::Writing(intent) => {
                let mut next = with(Leader::Idle);
                write(&mut next, intent.clone());
                add(Move::Writes(number), next);
            }
        }
        if *leader != Leader::Idle {
            add(Move::Dies(number), with(Leader::Idle));
        }
    }
    for api_server in 0..API_SERVERS {
        if world.api_servers[api_server] < world.bundle.version() && !world.is_stopped(api_server) {
            let mut next = world.clone();
            next.api_servers[api_server] += 1;
            add(Move::ApiServerSees(api_server), next);
        }
    }
    let mut next = world.clone();
    next.stopped = !world.stopped;
    if world.stopped {
        // The model assumes that a paused API server catches up at once when it continues.
        next.api_servers[API_SERVERS - 1] = world.bundle.version();
        add(Move::ApiServerContinues, next);
    } else {
        add(Move::ApiServerStops, next);
    }
    for replica in 0..REPLICAS {
        let Replica { seen, serves, .. } = world.replicas[replica];
        if seen < world.certificate.version() {
            let mut next = world.clone();
            // A replica without a certificate reads the current Secret before it watches the changes.
            let seen = if serves.is_some() { seen + 1 } else { world.certificate.version() };
            next.replicas[replica] = world.replicas[replica].sees(seen, world.certificate.seen(seen), rules);
            add(Move::ReplicaSees(replica), next);
        }
        if serves.is_some() {
            let mut next = world.clone();
            next.replicas[replica] =
                Replica::default().sees(world.certificate.version(), world.certificate.newest(), rules);
            add(Move::ReplicaRestarts(replica), next);
        }
    }
    for disturbance in disturbances {
        if let Some(next) = disturbed(world, *disturbance) {
            add(Move::Vandal(*disturbance), next);
        }
    }
    moves
}

/// The amount by which a disturbance raises an epoch: more than a few rotations would.
const RAISED: u64 = 100;

fn disturbed(world: &ModelState, disturbance: Disturbance) -> Option<ModelState> {
    let mut next = world.clone();
    next.disturbances_left = world.disturbances_left.checked_sub(1)?;
    match disturbance {
        Disturbance::BundleEmptied => {
            let bundle = world.bundle.newest().filter(|bundle| bundle.entries)?;
            next.bundle.push(BundleVersion { trusted: 0, is_external: true, ..bundle });
        }
        Disturbance::ForeignCaTrusted => {
            let bundle = world.bundle.newest().filter(|bundle| bundle.entries)?;
            next.bundle.push(BundleVersion { trusted: bundle.trusted | FOREIGN_CA, ..bundle });
        }
        Disturbance::CertificateLost => {
            let certificate = world.certificate.newest()?;
            next.certificate.push(CertificateVersion { signer: None, ..certificate });
        }
        Disturbance::BundleEpochRaised => {
            let bundle = world.bundle.newest()?;
            next.bundle.push(BundleVersion { epoch: bundle.epoch + RAISED, raised: true, ..bundle });
        }
        Disturbance::CertificateEpochRaised => {
            let certificate = world.certificate.newest()?;
            next.certificate.push(CertificateVersion { epoch: certificate.epoch + RAISED, ..certificate });
        }
        Disturbance::CertificateRestored => {
            let certificate = world.certificate_backup.filter(|backup| world.certificate.newest() != Some(*backup))?;
            next.certificate.push(CertificateVersion { restored: true, ..certificate });
        }
        Disturbance::ApiServersUncounted => next.uncounted = true,
        Disturbance::RecordLost => next.record = Stored::Missing,
        Disturbance::RecordCorrupted => next.record = Stored::Corrupt,
        Disturbance::RecordRestored => next.record = Stored::Is(world.backup.clone()?),
    }
    if world.record != next.record {
        next.record_version += 1;
    } else if matches!(disturbance, Disturbance::RecordLost | Disturbance::RecordRestored) {
        return None;
    }
    Some(next)
}

/// Repeatedly shows every change to all replicas and API servers, and lets one leader act. Returns a description of the
/// failure if the rotation does not complete, or if trust is broken meanwhile.
fn never_rests(world: &ModelState, rules: Rules, settings: &Settings) -> Option<String> {
    let mut world = world.clone();
    world.leaders = world.leaders.map(|_| Leader::Idle);
    world.stopped = false;
    // No further rotation is requested. After a disturbance, `decide` permits one more CA for the recovery.
    for _ in 0..MAX_REST_MOVES {
        world.api_servers = [world.bundle.version(); API_SERVERS];
        let (version, certificate) = (world.certificate.version(), world.certificate.newest());
        world.replicas = world.replicas.map(|replica| replica.sees(version, certificate, rules));
        world.forget();
        let decided = decide(&world, &Reading::of(&world), rules, settings, (false, false));
        let decided = decided.or_else(|| decide(&world, &Reading::of(&world), rules, settings, (true, false)));
        match decided {
            Some(intent) => write(&mut world, intent),
            None if world.at_rest() => return None,
            None => break,
        }
        if let Some(broken) = world.broken_trust() {
            return Some(format!("on the way to rest: {broken}"));
        }
        if world.at_rest() {
            return None;
        }
    }
    Some(format!(
        "it never comes to rest from {:?}, bundle {:?}, serving certificate {:?}",
        world.record, world.bundle, world.certificate
    ))
}
