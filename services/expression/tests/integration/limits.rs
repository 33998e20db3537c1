//! Tests that no expression crashes, runs for a long time, or turns a short string into a large result.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use pillion_expression::{
    Expression, ExpressionError, MAXIMUM_DEPTH, MAXIMUM_NODES, MAXIMUM_RESULT, MAXIMUM_SOURCE, Meter, Scope, Text,
};
use serde_json::json;

use crate::{Environment, empty};

/// Compiles on a stack as small as those of the threads that serve requests.
fn compile_on_small_stack(source: String) -> Result<Expression, ExpressionError> {
    let compile = move || Expression::compile(&source, &Scope::new().with("a").with("list"));
    std::thread::Builder::new().stack_size(2 << 20).spawn(compile).unwrap().join().expect("the stack is large enough")
}

#[test]
fn rejects_sources_that_could_exhaust_stack() {
    let chains = [
        format!("1{}", "+1".repeat(5_000)),
        format!("{}1{}", "(".repeat(10_000), ")".repeat(10_000)),
        "(".repeat(10_000),
        format!("{}true", "!".repeat(10_000)),
        format!("{}1", "- ".repeat(10_000)),
        format!("a{}", ".a".repeat(5_000)),
        format!("a{}", ".size()".repeat(5_000)),
        format!("a{}", "[0]".repeat(5_000)),
        format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000)),
        format!("{}1{}", "{1:".repeat(10_000), "}".repeat(10_000)),
        format!("{}a{}", "list.map(x, ".repeat(3_000), ")".repeat(3_000)),
        format!("{}1", "a ? 1 : ".repeat(5_000)),
        format!("a{}", " || a".repeat(5_000)),
        "\"".repeat(20_000),
    ];
    for chain in chains {
        let short: String = chain.chars().take(20).collect();
        let error = compile_on_small_stack(chain.clone()).unwrap_err();
        assert!(error.message.contains("1024 are allowed"), "{short}: {error:?}");
        // This source has the maximum length, so it must be rejected for a different reason.
        let cut: String = chain.chars().take(MAXIMUM_SOURCE).collect();
        let error = compile_on_small_stack(cut).unwrap_err();
        assert!(error.range.end <= MAXIMUM_SOURCE, "{short}: {error:?}");
        let expected = ["deep", "parts", "no end", "expected", "loops"];
        assert!(expected.iter().any(|expected| error.message.contains(expected)), "{short}: {error:?}");
    }
}

#[test]
fn evaluates_largest_sources_on_small_stack() {
    let run = || {
        let environment = Environment::new(json!({"a": true, "list": [[1]]}));
        let deep = MAXIMUM_DEPTH - 1;
        for source in [
            format!("{}1{}", "[".repeat(deep), "]".repeat(deep)),
            format!("{}true", "!".repeat(deep)),
            format!("1{}", "+1".repeat(deep)),
            format!("{}1", "a?1:".repeat(deep)),
            format!("{}1{}", "(".repeat(deep), ")".repeat(deep)),
            format!("[{}]", vec!["1"; MAXIMUM_NODES - 1].join(",")),
            "list.map(x, x.map(y, [y]))".to_owned(),
        ] {
            environment.run(&source).unwrap_or_else(|error| panic!("{source}: {error:?}"));
        }
        // Variables that read each other. The source of each one is nested too deeply.
        let mut variables = Vec::new();
        for index in 0..20 {
            let next = if index < 19 { format!("variables.v{}", index + 1) } else { "1".to_owned() };
            variables.push((format!("v{index}"), format!("{}{next}{}", "[".repeat(25), "][0]".repeat(25))));
        }
        let variables: Vec<_> = variables.iter().map(|(name, source)| (name.as_str(), source.as_str())).collect();
        let error = std::panic::catch_unwind(|| empty().variables(&variables).value("variables.v0"));
        // 25 lists and 25 indexes exceed the maximum depth, so the compiler rejects the source.
        assert!(error.is_err());
        let variables: Vec<_> = (0..40)
            .map(|index| {
                (format!("v{index}"), format!("{}variables.v{}{}", "[".repeat(20), (index + 1) % 40, "]".repeat(20)))
            })
            .collect();
        let variables: Vec<_> = variables.iter().map(|(name, source)| (name.as_str(), source.as_str())).collect();
        let error = empty().variables(&variables).error("variables.v0");
        assert!(error.message().contains("references between variables"), "{error:?}");
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(run).unwrap().join().expect("the stack is large enough");
}

#[test]
fn rejects_sources_above_each_limit() {
    let scope = Scope::new().with("list");
    let message = |source: &str| Expression::compile(source, &scope).unwrap_err().message;
    assert_eq!(message(&format!("[{}]", vec!["1"; MAXIMUM_NODES].join(","))), "the expression has more than 256 parts");
    assert_eq!(
        message(&format!("1{}", "+1".repeat(MAXIMUM_DEPTH))),
        "the expression is nested more than 32 levels deep"
    );
    assert_eq!(message("list.map(x, list.map(y, list.map(z, z)))"), "more than 2 loops are nested");
    assert_eq!(
        message(&format!("'{}'", "x".repeat(MAXIMUM_SOURCE))),
        "the expression has 1026 bytes; 1024 are allowed"
    );
    // Consecutive loops are not nested.
    Expression::compile("list.map(x, x).filter(x, true).map(x, list.all(y, y == x))", &scope).unwrap();
}

/// Evaluates an expression that needs too many steps or too much memory. Asserts that it soon fails with the error for
/// an exceeded limit.
fn assert_exhausted(environment: &Environment, source: &str) {
    let start = Instant::now();
    let error = environment.error(source);
    let elapsed = start.elapsed();
    assert!(error.is_exhausted(), "{source}: {error:?}");
    // On an idle machine, the evaluation takes much less time. The limit allows for a busy machine.
    assert!(elapsed < Duration::from_secs(3), "{source} took {elapsed:?}");
}

#[test]
fn excessive_work_ends() {
    let numbers: Vec<_> = (0..10_000).collect();
    let environment =
        Environment::new(json!({"list": numbers, "text": "ab".repeat(50_000), "words": vec!["word"; 10_000]}));
    for source in [
        "list.all(x, list.all(y, x + y >= 0))",
        "list.exists(x, list.exists(y, x + y < 0))",
        "list.map(x, list.map(y, x * y))",
        "list.filter(x, list.filter(y, x == y).size() > 1)",
        // Steps are charged even if each iteration fails, or if another operand determines the result.
        "list.all(x, list.all(y, y / 0 == 1))",
        "list.exists(x, list.map(y, x / y).size() < 0) || true",
        "list.sortBy(x, list.map(y, y).size())",
        "list.map(x, list.distinct())",
        "words.map(x, words.map(y, x + y).join(','))",
        "list.map(x, text.replace('a', 'b'))",
        "list.map(x, text.matches('(' + string(x) + ')'))",
        "list.map(x, sha256(text))",
        "list.map(x, text.split(''))",
        "list.map(x, x in list)",
        "list.map(x, list + list)",
        "list.map(x, list == list + [])",
        "lists.range(1000000000)",
        "list.map(x, lists.range(x))",
        "list.map(x, toJson(list))",
        "list.map(x, text + text)",
        "list.map(x, size(text))",
        "list.map(x, list.flatten())",
        "list.map(x, parseJson('[' + words.map(w, '1').join(',') + ']'))",
    ] {
        assert_exhausted(&environment, source);
    }
    // An expression like those in real profiles uses far fewer steps than the limit.
    let containers: Vec<_> = (0..50)
        .map(|number| {
            let env: Vec<_> = (0..100).map(|number| json!({"name": format!("V{number}"), "value": "x"})).collect();
            json!({"name": format!("c{number}"), "env": env})
        })
        .collect();
    let environment = Environment::new(json!({"containers": containers}));
    assert_eq!(environment.value("containers.all(c, c.env.all(e, e.name.startsWith('V') && e.value == 'x'))"), true);
}

#[test]
fn expressions_share_a_meter() {
    let environment = Environment::new(json!({"list": [1, 2, 3]}));
    let mut meter = Meter::new();
    environment.run_within("list.map(x, x + 1)", &mut meter).unwrap();
    let once = Meter::EXPRESSION - meter.left();
    assert!((10..100).contains(&once), "{once} steps");
    let mut meter = Meter::of(2 * once + once / 2);
    environment.run_within("list.map(x, x + 1)", &mut meter).unwrap();
    environment.run_within("list.map(x, x + 1)", &mut meter).unwrap();
    assert!(environment.run_within("list.map(x, x + 1)", &mut meter).unwrap_err().is_exhausted());
}

#[test]
fn bounds_size_of_results_and_strings() {
    let half = "x".repeat(MAXIMUM_RESULT / 2 + 1);
    let environment = Environment::new(json!({"half": half, "comma": ",".repeat(1_000), "long": "y".repeat(1_000)}));
    for source in [
        "half + half",
        "[half, half].join('')",
        "[half, half]",
        "{'a': half, 'b': half}",
        "comma.replace(',', long)",
        "comma.replace('', long)",
        "'%s%s'.format([half, half])",
        "regex.replace(comma, ',', long)",
        "strings.quote(half + half)",
        "toJson([half, half])",
        "pairs({'a': half, 'b': half})",
        "jsonPatch({'a': half}, [{'op': 'copy', 'from': '/a', 'path': '/b'}])",
        "base64.encode(half) + base64.encode(half)",
    ] {
        let error = environment.error(source);
        assert!(
            error.is_exhausted()
                || ["larger than", "longer than", "too large"]
                    .iter()
                    .any(|expected| error.message().contains(expected)),
            "{error:?}"
        );
    }
    // Each of the 40 operations doubles the size of the value.
    let doubling =
        "jsonPatch({'a': 'xxxxxxxx'}, lists.range(40).map(n, {'op': 'copy', 'from': '', 'path': '/n' + string(n)}))";
    let error = empty().error(doubling);
    assert!(error.is_exhausted() || error.message().contains("too large"), "{error:?}");
}

#[test]
fn bounds_regular_expressions() {
    let scope = Scope::new().with("text");
    let compile = |source: &str| Expression::compile(source, &scope);
    assert_eq!(compile(r"text.matches('\\pL{500}')").unwrap_err().message, "this regular expression is too large");
    assert_eq!(compile("text.matches('a(b')").unwrap_err().message, "this is not a regular expression: unclosed group");
    assert!(compile(&format!("text.matches('{}{}')", "(".repeat(100), ")".repeat(100))).is_err());
    let environment =
        Environment::new(json!({"text": "a".repeat(100_000), "pattern": r"(\pL{50}){50}", "worse": "(a*)*(a*)*$x"}));
    assert!(environment.error("text.matches(pattern)").message().contains("too large"));
    // A pattern is compiled only once for many strings. Compiling many different patterns exceeds the limit.
    let images =
        Environment::new(json!({"pattern": "^a", "words": (0..500).map(|n| format!("a{n}")).collect::<Vec<_>>()}));
    assert_eq!(images.value("words.all(w, w.matches(pattern))"), true);
    assert!(images.error("words.all(w, w.matches('^' + w))").is_exhausted());
    let start = Instant::now();
    assert_eq!(environment.value("text.matches(worse)"), false);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[test]
fn bounds_parsed_json_and_yaml() {
    let nested = "[".repeat(100_000);
    let mut bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (name, last) in "bcdefghi".chars().zip("abcdefgh".chars()) {
        writeln!(bomb, "{name}: &{name} [{}]", vec![format!("*{last}"); 9].join(",")).unwrap();
    }
    let environment = Environment::new(json!({"nested": nested, "bomb": bomb, "long": "1,".repeat(200_000)}));
    let run = move || {
        for source in [
            "parseJson(nested)",
            "parseYaml(nested)",
            "parseYaml(bomb)",
            "parseJson('[' + long + '1]')",
            "parseYaml(long)",
        ] {
            let start = Instant::now();
            environment.error(source);
            assert!(start.elapsed() < Duration::from_secs(3), "{source}: {:?}", start.elapsed());
        }
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(run).unwrap().join().expect("the stack is large enough");
}

#[test]
fn arithmetic_overflow_is_an_error() {
    let environment = Environment::new(json!({"min": i64::MIN, "text": "h\u{e9}llo \u{1f600}"}));
    for source in [
        "-min",
        "min - 1",
        "min * -1",
        "min / -1",
        "min % 0",
        "1 / 0",
        "1u - 2u",
        "math.abs(min)",
        "uint(-1)",
        "int(1e300)",
        "int(0.0 / 0.0)",
        "'x'.substring(-1)",
        "text.substring(3, 2)",
        "text.charAt(100)",
        "'%d'.format(['x'])",
        "'%'.format([])",
        "'%.999999999999f'.format([1.0])",
        "'%s'.format([])",
        "[1, 'a', 2.0].sort()",
        "[0.0 / 0.0, 1.0].sort()",
        "[{}].sort()",
        "base64.decode('###')",
        "string(b'\\xff')",
        "quantity('1e99')",
        "quantity('1e2147483647')",
        "quantity('9E') * 1000",
        // The product is the smallest signed 128-bit integer. Its absolute value is not a signed 128-bit integer.
        "quantity('18446744073709551616n') * min",
        "quantity('9E') + quantity('9E')",
        "quantity('1') / 0",
        "duration('99999999h')",
        "duration('1')",
        "jitter(2, 1)",
        "short('abc', 1)",
        "dnsLabel('')",
        "{1: 1, 1u: 2}",
        "{[]: 1}",
        "optional.none().value()",
        "[].min()",
        "lists.range(-1)",
        "jsonPatch({}, [{'op': 'remove', 'path': '/a'}])",
        "jsonPatch({}, 'x')",
        "b'x'",
        "0.0 / 0.0",
    ] {
        environment.error(source);
    }
    // The whole parts of the first two quantities, in billionths, are the largest that fit into a signed 128-bit
    // integer. With their fractions, the quantities do not fit.
    for large in ["'170141183460.9E'", "'147573952589.9Ei'", "'9.3E'", "'999999999999999999999999999999E'", "9.3e18"] {
        let capped = format!("quantity({large}).compareTo(quantity('9223372036854775807')) == 0");
        assert_eq!(environment.value(&capped), true, "{large}");
    }
    assert_eq!(
        environment.value("quantity('-170141183460.9E').compareTo(quantity('-9223372036854775807')) == 0"),
        true
    );
    assert_eq!(environment.value("isQuantity('9.2E') && isQuantity('-7.9Ei') && isQuantity('9.3E')"), true);
    assert_eq!(environment.value("text.substring(1, 2) + text.charAt(6)"), "\u{e9}\u{1f600}");
    assert_eq!(environment.value("jitter(min, 9223372036854775807) == jitter(min, 9223372036854775807)"), true);
}

proptest::proptest! {
    #[test]
    fn compiler_survives_random_sources(source in r#"[a-z0-9 .?:!&|+*/%()<>=\[\]{},'"$rb\\-]{0,60}"#) {
        let scope = Scope::new().with("a");
        if let Err(error) = Expression::compile(&source, &scope) {
            proptest::prop_assert!(source.get(error.range.clone()).is_some(), "{:?} in {:?}", error, source);
        }
        if let Err(error) = Text::parse(&format!("x${{{source}")) {
            proptest::prop_assert!(error.range.end <= source.len() + 3);
        }
    }

    #[test]
    fn compiler_survives_random_characters(source in ".{0,40}") {
        let _ = Expression::compile(&source, &Scope::new());
        let _ = Text::parse(&source);
    }
}
