//! Searches for expressions that need more time or memory than the meter charges for them.
//!
//! The expressions are random. They use all functions, operators, loops and kinds of errors, with values that are
//! expensive to process. For each set of functions, the search keeps the expression with the worst ratio of actual to
//! charged cost, and varies it. The environment variable `PILLION_BOMBS` sets the number of expressions; `just nightly`
//! runs ten million. The test prints the worst ones.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "test helpers fail by panicking, and print the worst expressions"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pillion_expression::{Bindings, EvaluationError, Expression, Meter, Scope, Value, signatures};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value as Json, json};

/// The number of expressions in a run without `PILLION_BOMBS`.
const EXPRESSIONS: usize = 100_000;

/// The maximum CPU time of a step, in nanoseconds, including the fixed cost of an evaluation. A run with
/// `PILLION_BOMBS` enforces this limit. Other runs share the machine with tests that create load, so they only detect
/// large excesses.
const NANOSECONDS_IN_A_STEP: f64 = 60.0;

/// The factor by which a run without `PILLION_BOMBS` may exceed the limit.
const TOLERANCE: f64 = 10.0;

/// The number of steps that is added to the charged steps of every evaluation.
const OVERHEAD_STEPS: usize = 400;

/// The memory that an evaluation may use in addition to the charged memory, in bytes. Compiling a pattern uses the most
/// additional memory.
const OVERHEAD_BYTES: u64 = 1 << 20;

/// One in this number of expressions may use all steps, and the others a tenth. A tenth is enough to find an expression
/// that is too slow for its number of steps, unless its cost grows faster than its charge.
const ALL_STEPS_OF: usize = 10;

/// The number of times that the worst expressions are measured again in the end.
const ROUNDS: usize = 10;

/// The number of function sets for which the search keeps and varies the worst expression.
const KEPT: usize = 64;

/// A simple random number generator. Equal seeds produce equal numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).unwrap() % bound
    }

    fn pick<'t>(&mut self, of: &[&'t str]) -> &'t str {
        of[self.below(of.len())]
    }
}

/// Returns the values that expressions read: large, long, nested and escaped values.
fn values() -> Json {
    let nested = |depth: usize| (0..depth).fold(json!(1), |inner, _| json!([inner]));
    let map = |count: usize| (0..count).map(|key| (format!("k{key}"), json!(key))).collect::<serde_json::Map<_, _>>();
    json!({
        "long": "a".repeat(100_000), "words": "word ".repeat(4_000), "wide": "\u{e9}\u{1f600}".repeat(5_000), "short": "abc",
        "commas": ",".repeat(20_000), "pairs_text": "a=b,".repeat(4_000), "dollars": "$0$1".repeat(5_000),
        "evil": format!("{}b", "a".repeat(3_000)), "pattern": "(a|b)*a(a|b){12}", "class": "[\\pL]{1,30}",
        "image_text": "registry.example.com:5000/a/b:1@sha256:00", "json_text": json!(map(2_000)).to_string(),
        "lists_text": "[".to_owned() + &"[],".repeat(20_000) + "1]", "deep_text": nested(100).to_string(),
        "yaml_text": "a: &a [1, 2, 3]\nb: *a\n", "base": "QUJD".repeat(5_000),
        "escaped": "\"\\\n".repeat(5_000), "number_text": "1".repeat(2_000),
        "numbers": (0..3_000).collect::<Vec<_>>(), "texts": vec!["text"; 2_000], "equal": vec!["x".repeat(2_000); 100],
        "rows": vec![vec![1; 50]; 50], "deep": nested(60), "mixed": [1, "a", null, 1.5, {"a": 1}, [2]], "empty": [],
        "map": map(1_000), "small": {"a": 1, "b": "two", "c": [3], "d": null}, "maps": vec![json!({"name": "n", "value": "v"}); 500],
        "container": {"name": "c", "env": vec![json!({"name": "E", "value": "v"}); 300],
            "ports": [{"name": "http", "containerPort": 80}], "volumeMounts": vec![json!({"name": "m", "mountPath": "/m"}); 100]},
        "probe": {"httpGet": {"port": "http"}, "tcpSocket": {"port": "other"}},
        "patch": [{"op": "copy", "from": "/a", "path": "/z"}, {"op": "add", "path": "/y", "value": "x".repeat(1_000)}],
        "one": 1, "thousand": 1000, "negative": -1, "largest": i64::MAX, "half": 0.5, "yes": true, "nothing": null,
    })
}

const TEXTS: [&str; 17] = [
    "long",
    "words",
    "wide",
    "short",
    "commas",
    "pairs_text",
    "dollars",
    "evil",
    "image_text",
    "json_text",
    "lists_text",
    "deep_text",
    "yaml_text",
    "base",
    "escaped",
    "number_text",
    "pattern",
];
const LISTS: [&str; 9] = ["numbers", "texts", "equal", "rows", "deep", "mixed", "empty", "maps", "patch"];
const MAPS: [&str; 4] = ["map", "small", "container", "probe"];
const NUMBERS: [&str; 6] = ["one", "thousand", "negative", "largest", "half", "lists.range(50).size()"];
const PATTERNS: [&str; 10] = [
    "'a+'",
    "'(a|b)*a(a|b){12}'",
    "'^a'",
    "'(a*)*$'",
    "'.'",
    "'([a-z]+)[0-9]'",
    "pattern",
    "class",
    "'(?i)word'",
    "short",
];

/// Generates a random expression.
struct Writer<'r> {
    random: &'r mut Random,
    /// The number of parts that may still be added to the expression.
    left: usize,
    loops: usize,
    kept: &'r [String],
}

impl Writer<'_> {
    fn any(&mut self) -> String {
        match self.random.below(10) {
            0 | 1 => self.text(),
            2 | 3 => self.list(),
            4 => self.map(),
            5 => self.number(),
            6 => self.condition(),
            _ => self.call(),
        }
    }

    fn leaf(&mut self, of: &[&str]) -> String {
        if self.loops > 0 && self.random.below(3) == 0 {
            return format!("x{}", self.random.below(self.loops));
        }
        self.random.pick(of).to_owned()
    }

    /// Whether to add another part. Each call consumes one of the remaining parts.
    fn grows(&mut self) -> bool {
        let grows = self.left > 0 && self.random.below(4) > 0;
        self.left = self.left.saturating_sub(1);
        grows
    }

    fn text(&mut self) -> String {
        if !self.grows() {
            return self.leaf(&TEXTS);
        }
        match self.random.below(6) {
            0 => format!("({} + {})", self.text(), self.text()),
            1 => format!("string({})", self.any()),
            2 => format!("toJson({})", self.any()),
            _ => self.call(),
        }
    }

    fn list(&mut self) -> String {
        if !self.grows() {
            return self.leaf(&LISTS);
        }
        match self.random.below(7) {
            0 => format!("({} + {})", self.list(), self.list()),
            1 => format!("[{}, {}]", self.any(), self.any()),
            2 | 3 => self.write_loop("map", Self::any),
            4 => self.write_loop("filter", Self::condition),
            5 => self.write_loop("sortBy", Self::any),
            _ => self.call(),
        }
    }

    fn map(&mut self) -> String {
        if !self.grows() {
            return self.leaf(&MAPS);
        }
        match self.random.below(3) {
            0 => format!("{{'a': {}, {}: {}}}", self.any(), self.text(), self.any()),
            1 => format!("merge({}, {})", self.map(), self.map()),
            _ => self.call(),
        }
    }

    fn number(&mut self) -> String {
        if !self.grows() {
            return self.leaf(&NUMBERS);
        }
        let operator = self.random.pick(&["+", "-", "*", "/", "%"]);
        format!("({} {operator} {})", self.number(), self.number())
    }

    fn condition(&mut self) -> String {
        if !self.grows() {
            return "yes".to_owned();
        }
        match self.random.below(9) {
            0 => format!("({} && {})", self.condition(), self.condition()),
            1 => format!("({} || {})", self.condition(), self.condition()),
            2 => self.write_loop("exists", Self::condition),
            3 => self.write_loop("all", Self::condition),
            4 => format!("({} in {})", self.any(), self.any()),
            5 => format!("!{}", self.condition()),
            // A missing field is an error, which the expression may absorb.
            6 => format!("{}.kk == 1", self.any()),
            _ => {
                let operator = self.random.pick(&["==", "!=", "<", ">="]);
                format!("({} {operator} {})", self.any(), self.any())
            }
        }
    }

    fn write_loop(&mut self, name: &str, body: fn(&mut Self) -> String) -> String {
        if self.loops == 2 {
            return self.random.pick(&LISTS).to_owned();
        }
        let list = self.list();
        let variable = format!("x{}", self.loops);
        self.loops += 1;
        let body = body(self);
        self.loops -= 1;
        format!("{list}.{name}({variable}, {body})")
    }

    /// Generates a call of a random function. Most arguments have the types in the signature, but some have other
    /// types.
    fn call(&mut self) -> String {
        if self.left == 0 {
            return self.leaf(&TEXTS);
        }
        self.left -= 1;
        if !self.kept.is_empty() && self.loops == 0 && self.random.below(6) == 0 {
            return format!("({})", self.kept[self.random.below(self.kept.len())]);
        }
        let signatures: Vec<_> = signatures().collect();
        let signature = signatures[self.random.below(signatures.len())];
        let (function, parameters) = signature.split_once('(').unwrap();
        let parameters = parameters.trim_end_matches(')');
        let mut arguments: Vec<String> = Vec::new();
        for parameter in parameters.split(", ").filter(|parameter| !parameter.is_empty()) {
            if parameter == "..." {
                arguments.push(self.any());
            } else if (parameter != "limit" && parameter != "from" && parameter != "depth") || self.random.below(2) == 0
            {
                arguments.push(self.argument(parameter));
            }
        }
        let arguments = arguments.join(", ");
        match function.split_once('.') {
            Some((on, name))
                if !["base64", "lists", "math", "optional", "regex", "strings"].contains(&on)
                    || name_is_member(signature) =>
            {
                format!("{}.{name}({arguments})", self.argument(on))
            }
            _ => format!("{function}({arguments})"),
        }
    }

    fn argument(&mut self, parameter: &str) -> String {
        if self.random.below(12) == 0 {
            return self.any();
        }
        match parameter {
            "text" | "part" | "old" | "new" | "separator" | "prefix" | "replacement" | "bytes" | "name" | "port" => {
                self.text()
            }
            "list" | "pairs" | "operations" => self.list(),
            "keys" => "texts".to_owned(),
            "map" => self.map(),
            "pattern" => self.random.pick(&PATTERNS).to_owned(),
            "container" => "container".to_owned(),
            "probe" => "probe".to_owned(),
            "quantity" => format!("quantity({})", self.number()),
            "duration" => "duration('1h')".to_owned(),
            "optional" => format!("optional.of({})", self.any()),
            "value" => self.any(),
            _ => self.number(),
        }
    }
}

/// Whether a signature that begins with `optional` belongs to a member function, such as `optional.value()`. A function
/// such as `optional.of(value)` is global.
fn name_is_member(signature: &str) -> bool {
    ["optional.hasValue", "optional.value", "optional.or"].iter().any(|name| signature.starts_with(name))
}

struct Values<'w>(&'w Json);

impl<'w> Bindings<'w> for Values<'w> {
    fn value(&self, name: &str, _: &mut Meter) -> Result<Value<'w>, EvaluationError> {
        Ok(Value::from(&self.0[name]))
    }

    fn member(&self, _: &str, _: &str, _: &mut Meter) -> Result<Option<Value<'w>>, EvaluationError> {
        Ok(None)
    }

    fn seed(&self) -> &'static str {
        "11111111-2222-3333-4444-555555555555"
    }
}

/// The cost of an evaluation.
#[derive(Clone, Copy, Debug)]
struct Cost {
    nanoseconds: f64,
    steps: usize,
    bytes: u64,
    granted: usize,
}

impl Cost {
    /// Returns the CPU time for each step, in nanoseconds.
    #[expect(clippy::cast_precision_loss, reason = "the number of steps is small")]
    fn pace(&self) -> f64 {
        self.nanoseconds / (self.steps + OVERHEAD_STEPS) as f64
    }

    /// Returns the number of bytes that were used but not charged.
    fn surplus(&self) -> u64 {
        self.bytes.saturating_sub(self.granted as u64)
    }
}

fn processor_time() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.try_into().unwrap(), now.tv_nsec.try_into().unwrap()).as_secs_f64() * 1e9
}

fn measure(expression: &Expression, values: &Json, granted: usize) -> Cost {
    let mut meter = Meter::of(granted);
    let began = processor_time();
    let info = allocation_counter::measure(|| {
        let _ = expression.evaluate_outcome(&Values(values), &mut meter);
    });
    let nanoseconds = processor_time() - began;
    let (steps, granted) = (granted - meter.left(), Meter::MEMORY - meter.memory_left());
    Cost { nanoseconds, steps, bytes: info.bytes_max, granted }
}

/// Returns the signatures of the functions that an expression calls.
fn functions_of(source: &str) -> impl Iterator<Item = &'static str> + '_ {
    signatures().filter(|signature| {
        let (name, _) = signature.split_once('(').unwrap();
        let call = match name.rsplit_once('.') {
            Some((on, _)) if ["base64", "lists", "math", "regex", "strings"].contains(&on) => format!("{name}("),
            Some((_, method)) => format!(".{method}("),
            None => format!("{name}("),
        };
        source.contains(&call)
    })
}

#[test]
fn charges_bound_time_and_memory() {
    let run = || {
        let count = std::env::var("PILLION_BOMBS").map_or(EXPRESSIONS, |count| count.parse().unwrap());
        let seed = std::env::var("PILLION_BOMBS_SEED").map_or(0x9e37_79b9_7f4a_7c15, |seed| seed.parse().unwrap());
        let values = values();
        let names = values.as_object().unwrap().keys();
        let scope = || names.clone().fold(Scope::new(), Scope::with);
        let mut random = Random(seed);
        // The worst expressions, by the set of functions that they call.
        let mut worst: BTreeMap<BTreeSet<&str>, (f64, String, Cost)> = BTreeMap::new();
        let mut kept: Vec<String> = Vec::new();
        let mut heaviest: Option<(u64, String)> = None;
        let mut reached: BTreeSet<&str> = BTreeSet::new();
        let (mut evaluated, mut steps) = (0_usize, 0_usize);
        for number in 0..count {
            let left = 2 + random.below(12);
            let source = Writer { random: &mut random, left, loops: 0, kept: &kept }.any();
            let Ok(expression) = Expression::compile(&source, &scope()) else { continue };
            let functions: BTreeSet<_> = functions_of(&source).collect();
            reached.extend(&functions);
            let granted = Meter::EXPRESSION / if number % ALL_STEPS_OF == 0 { 1 } else { 10 };
            let mut cost = measure(&expression, &values, granted);
            // The load of other processes rarely slows down several measurements in a row.
            for _ in 0..3 {
                if cost.pace() > NANOSECONDS_IN_A_STEP / 2.0 {
                    let again = measure(&expression, &values, granted);
                    cost.nanoseconds = cost.nanoseconds.min(again.nanoseconds);
                }
            }
            evaluated += 1;
            steps += cost.steps;
            if heaviest.as_ref().is_none_or(|(surplus, _)| cost.surplus() > *surplus) {
                heaviest = Some((cost.surplus(), source.clone()));
            }
            if worst.get(&functions).is_none_or(|(pace, ..)| cost.pace() > *pace) {
                worst.insert(functions, (cost.pace(), source, cost));
                if worst.len() > KEPT {
                    let best = worst.iter().min_by(|(_, (pace, ..)), (_, (other, ..))| pace.total_cmp(other));
                    let best = best.map(|(functions, _)| functions.clone()).unwrap();
                    worst.remove(&best);
                }
                kept = worst.values().map(|(_, source, _)| source.clone()).collect();
            }
        }
        println!("{evaluated} expressions, {} steps on average", steps / evaluated.max(1));
        let mut worst: Vec<_> = worst.into_values().collect();
        // Other processes may have slowed down all measurements of an expression. It is measured again in several
        // rounds, because such a phase often lasts for a tenth of a second.
        for _ in 0..ROUNDS {
            for (pace, source, cost) in &mut worst {
                let granted = Meter::EXPRESSION / if cost.steps > Meter::EXPRESSION / 10 { 1 } else { 10 };
                let again = measure(&Expression::compile(source, &scope()).unwrap(), &values, granted);
                cost.nanoseconds = cost.nanoseconds.min(again.nanoseconds);
                *pace = cost.pace();
            }
        }
        worst.sort_by(|(pace, ..), (other, ..)| other.total_cmp(pace));
        for (pace, source, cost) in worst.iter().take(10) {
            println!("{pace:6.1} ns per step, {cost:?}: {source}");
        }
        println!("most memory that was used but not charged: {heaviest:?}");
        let missed: Vec<_> = signatures().filter(|signature| !reached.contains(signature)).collect();
        assert!(evaluated > count / 3, "only {evaluated} of {count} expressions compile");
        assert!(missed.is_empty(), "no expression calls {missed:?}");
        let (pace, source, cost) = &worst[0];
        let tolerance = if std::env::var_os("PILLION_BOMBS").is_some() { 1.0 } else { TOLERANCE };
        assert!(*pace <= tolerance * NANOSECONDS_IN_A_STEP, "{pace:.0} ns per step, {cost:?}: {source}");
        let (surplus, source) = heaviest.unwrap();
        assert!(surplus <= OVERHEAD_BYTES, "{surplus} bytes were used but not charged: {source}");
    };
    // The stack is as small as those of the threads that serve requests.
    std::thread::Builder::new().stack_size(2 << 20).spawn(run).unwrap().join().expect("all costs are within limits");
}
