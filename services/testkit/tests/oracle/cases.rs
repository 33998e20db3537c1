//! Runs the cases. In each case, the engine, strategic merge and server-side apply all apply the same template to the
//! same pod.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use pillion_testkit::ControlPlane;
use serde_json::Value as Json;

use crate::oracle::choices::{arrange, as_strategic_patch, switches};
use crate::oracle::compare::{Difference, differences};
use crate::oracle::openapi::OpenApi;
use crate::oracle::pins::{Case, Oracle, PINS, PinnedBy, has_repeated_variable, pinned};
use crate::oracle::server::{Answer, Templates};
use crate::oracle::shrink::{places, without};
use crate::oracle::{ours, pods};
use pillion_testkit::dice::Dice;

/// The default number of cases; `PILLION_ORACLE_CASES` overrides it.
const CASES: usize = 1_000;
/// The number of templates per pod. Further templates for a stored pod are cheap, because only the pod must be stored.
const TEMPLATES: u64 = 20;
/// The number of pods that are tested concurrently.
const AT_ONCE: usize = 8;
/// The maximum number of failures to show.
const SHOWN: usize = 3;

/// The number of templates that have failed so far.
static FAILED: AtomicUsize = AtomicUsize::new(0);

/// Reasons for which the engine rejects a template, each with the text that the API server uses for the same error.
const ENGINE_REJECTIONS: [(&str, &str); 2] = [("NameTaken", "Duplicate value"), ("MissingVolume", "Not found")];

/// The results of the cases.
#[derive(Default)]
struct Tally {
    cases: usize,
    /// The number of comparisons in which both results are equal, apart from the order of elements.
    equal: usize,
    /// The number of comparisons in which both sides reject the template.
    refused: usize,
    pinned: BTreeMap<PinnedBy, usize>,
    failures: Vec<String>,
}

/// Returns the time limit for the configured number of cases, which is many times the usual duration.
pub(crate) fn time_limit() -> Duration {
    Duration::from_mins(5) + Duration::from_millis(wanted().unwrap_or_default().saturating_mul(100))
}

fn wanted() -> Result<u64> {
    number("PILLION_ORACLE_CASES", CASES as u64)
}

fn number(name: &'static str, default: u64) -> Result<u64> {
    std::env::var(name).map_or(Ok(default), |text| text.parse().context(name))
}

/// Runs the configured number of cases.
pub(crate) async fn run() -> Result<()> {
    let cases = wanted()?;
    let seed = number("PILLION_ORACLE_SEED", 0)?;
    let control_plane = ControlPlane::start().await?;
    let openapi = OpenApi::fetch(&control_plane.client()).await?;
    let templates = Templates::new(control_plane.client());
    let started = Instant::now();
    let mut tally: Tally = stream::iter(0..cases.div_ceil(TEMPLATES))
        .map(|pod| one_pod(&openapi, &templates, seed.wrapping_mul(1_000_000_007).wrapping_add(pod)))
        .buffer_unordered(AT_ONCE)
        .try_fold(Tally::default(), |all, one| std::future::ready(Ok(all.and(one))))
        .await?;
    let Tally { cases, equal, refused, .. } = tally;
    println!("{cases} cases in {:?}: {equal} equal comparisons, {refused} rejected by both", started.elapsed());
    for (pin, count) in &tally.pinned {
        let reason = match pin {
            PinnedBy::Pin(number) => format!("{:?}: {}", PINS[*number].oracle, PINS[*number].reason),
            PinnedBy::Atomic(place) => format!("ServerSideApply: {place} is atomic"),
            PinnedBy::OneOf => "ServerSideApply: leaves both members of a one-of".to_owned(),
        };
        println!("{count:6} {reason}");
    }
    // The test proves little unless most cases are valid and their results are equal.
    ensure!(equal > cases && refused < cases / 5, "too many cases are rejected or different");
    for (number, pin) in PINS.iter().enumerate() {
        if cases >= CASES && seed == 0 && !pin.is_rare && !tally.pinned.contains_key(&PinnedBy::Pin(number)) {
            tally.failures.push(format!("no case needs this pin any more: {}", pin.reason));
        }
    }
    let count = tally.failures.len();
    tally.failures.sort_by_key(String::len);
    tally.failures.truncate(SHOWN);
    ensure!(count == 0, "{count} differences without a reason, the first of them:\n{}", tally.failures.join("\n"));
    Ok(())
}

impl Tally {
    fn and(mut self, other: Self) -> Self {
        self.cases += other.cases;
        self.equal += other.equal;
        self.refused += other.refused;
        for (pin, count) in other.pinned {
            *self.pinned.entry(pin).or_default() += count;
        }
        self.failures.extend(other.failures);
        self
    }

    fn compare(&mut self, openapi: &OpenApi, oracle: Oracle, case: &Case<'_>, ours: &Answer, theirs: &Answer) {
        let found = match (ours, theirs) {
            (Ok(ours), Ok(theirs)) => {
                let found = if oracle == Oracle::ServerSideApply && has_repeated_variable(case) {
                    // If a variable occurs twice, server-side apply keeps one entry for each name that it applies. The
                    // engine also keeps the overridden entries.
                    differences(openapi, &without_repeated(ours), &without_repeated(theirs))
                } else {
                    differences(openapi, ours, theirs)
                };
                self.equal += usize::from(found.iter().all(|difference| difference.is_order));
                found
            }
            (Err(ours), Err(theirs)) => {
                self.refused += 1;
                let is_same = match ENGINE_REJECTIONS.iter().find(|(reason, _)| ours.starts_with(reason)) {
                    Some((_, words)) => theirs.contains(words),
                    // Server-side apply keeps both members of a one-of, so its rejection has further causes, which are
                    // not compared.
                    None => oracle == Oracle::ServerSideApply || causes(ours) == causes(theirs),
                };
                let different = || Difference::whole(format!("the engine rejects: {ours}\n  the API server: {theirs}"));
                if is_same { Vec::new() } else { vec![different()] }
            }
            (Ok(_), Err(reason)) if oracle == Oracle::ServerSideApply && case.switches > 0 && is_one_of(reason) => {
                *self.pinned.entry(PinnedBy::OneOf).or_default() += 1;
                Vec::new()
            }
            (Ok(_), Err(reason)) => vec![refusal(reason)],
            (Err(reason), Ok(_)) => vec![Difference::whole(format!("rejected only by the engine: {reason}"))],
        };
        let mut unexplained = Vec::new();
        for difference in found {
            match pinned(oracle, case, &difference) {
                Some(pin) => *self.pinned.entry(pin).or_default() += 1,
                None => unexplained.push(format!("{:?}: {}", difference.places, difference.what)),
            }
        }
        if !unexplained.is_empty() {
            let found = unexplained.join("\n  ");
            self.failures.push(format!("{oracle:?}\n  {found}\npod: {}\ntemplate: {}", case.pod, case.template));
        }
    }
}

/// Returns a copy of the pod in which each container (not init container) has only the effective entry of each
/// environment variable: the last one with that name.
fn without_repeated(pod: &Json) -> Json {
    let mut pod = pod.clone();
    for container in pod["spec"]["containers"].as_array_mut().into_iter().flatten() {
        if let Some(env) = container.get_mut("env").and_then(Json::as_array_mut) {
            let names: Vec<_> = env.iter().map(|entry| entry["name"].clone()).collect();
            let mut place = 0;
            env.retain(|entry| {
                place += 1;
                !names[place..].contains(&entry["name"])
            });
        }
    }
    pod
}

/// Returns the causes of a rejection, sorted. Removes the object's name and all digits, because indexes of elements may
/// differ.
fn causes(refusal: &str) -> Vec<String> {
    let all = refusal.split_once(" is invalid: ").map_or(refusal, |(_, causes)| causes);
    let all: String = all.chars().filter(|character| !character.is_ascii_digit()).collect();
    let mut causes: Vec<_> = all.trim_matches(['[', ']']).split(", template.").map(str::to_owned).collect();
    causes.sort_unstable();
    causes
}

/// Returns whether the API server rejects the object because two members of a one-of are set.
fn is_one_of(refusal: &str) -> bool {
    let words =
        ["may not specify more than 1", "may not be specified when", "may not have more than one", "at most one"];
    words.iter().any(|words| refusal.contains(words))
}

/// Returns the difference for a template that only the API server rejects. If all causes concern ports, or all concern
/// topology spread constraints, the difference names that list.
fn refusal(reason: &str) -> Difference {
    let causes = causes(reason);
    let is_about = |list: &str| causes.iter().all(|cause| cause.contains(list));
    let lists = [(".ports[", "Container.ports"), (".topologySpreadConstraints[", "PodSpec.topologySpreadConstraints")];
    let place = lists.iter().find(|(list, _)| is_about(list)).map(|(_, place)| (*place).to_owned());
    let what = format!("rejected only by Kubernetes: {reason}");
    Difference { places: place.into_iter().collect(), ..Difference::whole(what) }
}

async fn one_pod(openapi: &OpenApi, templates: &Templates, seed: u64) -> Result<Tally> {
    let mut tally = Tally::default();
    let mut dice = Dice::new(seed);
    let name = format!("pod-{seed}");
    let written = pods::author(&mut dice);
    let stored = templates.create(&name, &written).await?;
    let pod = match stored {
        Ok(pod) => pod,
        Err(reason) => {
            tally.failures.push(format!("the API server rejects the pod: {reason}\n{written}"));
            return Ok(tally);
        }
    };
    for _ in 0..TEMPLATES {
        let mut template = pods::template(&mut dice, &pod);
        let yields = dice.chance(70);
        let is_arranged = dice.chance(75);
        if yields {
            switches(openapi, TYPE, &mut template, &pod, true);
        }
        if is_arranged {
            arrange(openapi, TYPE, &mut template, &pod);
        }
        let case = Template { openapi, templates, name: &name, pod: &pod, is_arranged };
        let mut one = case.run(&template).await?;
        // Shrinking one failure takes several hundred requests, so only the failures to be shown are shrunk.
        if !one.failures.is_empty() && FAILED.fetch_add(1, Ordering::Relaxed) < SHOWN {
            one.failures = case.smaller(template).await?;
        }
        tally = tally.and(one);
    }
    Ok(tally)
}

/// The name of the type of pods and templates in the API server's schema.
const TYPE: &str = "PodTemplateSpec";
/// The maximum number of smaller templates to try when shrinking a failure.
const SMALLER: usize = 400;

/// Returns the start of a failure's message, which identifies it: the oracle and the path of the first difference.
fn places_of(failure: &str) -> &str {
    failure.split_once("]: ").map_or(failure, |(places, _)| places)
}

/// A pod and the objects that are needed to apply templates to it.
struct Template<'a> {
    openapi: &'a OpenApi,
    templates: &'a Templates,
    /// The name under which the API server stores the pod.
    name: &'a str,
    pod: &'a Json,
    is_arranged: bool,
}

impl Template<'_> {
    async fn run(&self, template: &Json) -> Result<Tally> {
        let mut tally = Tally { cases: 1, ..Tally::default() };
        let merged = ours::merged(self.openapi, self.pod, template)
            .with_context(|| format!("pod: {}\ntemplate: {template}", self.pod))?;
        let ours = async {
            match &merged {
                Ok(merged) => self.templates.normalised(merged).await,
                Err(reason) => Ok(Err(reason.clone())),
            }
        };
        let patch = as_strategic_patch(self.openapi, TYPE, template);
        let strategic = self.templates.strategic(self.name, &patch);
        let applied = self.templates.applied(self.name, template);
        let (ours, strategic, applied) = futures::future::try_join3(ours, strategic, applied).await?;
        let switches = switches(self.openapi, TYPE, &mut template.clone(), self.pod, false);
        let case = Case { pod: self.pod, template, is_arranged: self.is_arranged, switches };
        tally.compare(self.openapi, Oracle::StrategicMerge, &case, &ours, &strategic);
        tally.compare(self.openapi, Oracle::ServerSideApply, &case, &ours, &applied);
        Ok(tally)
    }

    /// Shrinks a failing template. Returns the failures of the smallest template found that fails at the same paths.
    async fn smaller(&self, mut template: Json) -> Result<Vec<String>> {
        let mut failures = self.run(&template).await?.failures;
        for place in places(&template).into_iter().take(SMALLER) {
            let Some(smaller) = without(&template, &place) else { continue };
            // Ignores invalid templates and those that fail for another reason.
            if let Ok(tally) = self.run(&smaller).await
                && tally
                    .failures
                    .iter()
                    .map(|failure| places_of(failure))
                    .eq(failures.iter().map(|failure| places_of(failure)))
            {
                (template, failures) = (smaller, tally.failures);
            }
        }
        Ok(failures)
    }
}
