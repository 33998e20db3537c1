//! Tests the values and the cost of expressions that read a tape. The other tests cover the language.

use pillion_expression::{Bindings, EvaluationError, Expression, Meter, Outcome, Scope, Value};
use pillion_json::{OwnedTape, Value as Tape};

struct Root<'v>(Tape<'v>);

impl<'v> Bindings<'v> for Root<'v> {
    fn value(&self, name: &str, meter: &mut Meter) -> Result<Value<'v>, EvaluationError> {
        let value = self.0.get(name).ok_or_else(|| EvaluationError::new("the name does not exist"))?;
        let value = Value::read(value, meter)?;
        match name {
            "extended" => {
                let members = [Some(("type", Value::text("App"))), Some(("hidden", Value::Bool(true)))];
                Value::extended(value, members, meter)
            }
            _ => Ok(value),
        }
    }

    fn member(&self, _: &str, _: &str, _: &mut Meter) -> Result<Option<Value<'v>>, EvaluationError> {
        Ok(None)
    }

    fn seed(&self) -> &'static str {
        ""
    }
}

fn run(text: &str, source: &str) -> Result<serde_json::Value, EvaluationError> {
    let tape = OwnedTape::parse(text).unwrap();
    let scope = ["o", "l", "extended"].into_iter().fold(Scope::new(), Scope::with).with_any_members("params");
    let expression = Expression::compile(source, &scope).unwrap();
    let outcome = expression.evaluate_outcome(&Root(tape.root()), &mut Meter::new());
    outcome.map(|outcome| match outcome {
        Outcome::Value(value) => value,
        Outcome::Absent => serde_json::Value::Null,
    })
}

#[test]
fn tape_values_behave_like_other_values() {
    let text = r#"{"o": {"s": "a\"b", "i": 7, "d": 1.5, "big": 18446744073709551615, "t": true, "n": null, "e": {}, "k\u0061": 1,
        "twice": 1, "twice": 2}, "l": [1, [2, {"x": 3}], "a"]}"#;
    for (source, expected) in [
        ("o.s", r#""a\"b""#),
        ("o.i + 1", "8"),
        ("o.d * 2.0", "3"),
        ("o.big > 1.8e19", "true"),
        ("o.t && o.n == null && has(o.n) && !has(o.z)", "true"),
        ("o.ka + o.twice", "3"),
        ("o.size()", "9"),
        ("o.map(k, k)[8]", "\"twice\""),
        ("pick(o, ['twice'])", r#"{"twice": 2}"#),
        ("l[1][1].x + l.size()", "6"),
        ("l == [1, [2, {'x': 3}], 'a'] && [1, [2, {'x': 3}], 'a'] == l", "true"),
        ("2 in l[1] && {'x': 3} in l[1] && !(4 in l) && 'ka' in o", "true"),
        ("type(l) == list && type(o.e) == map", "true"),
        ("firstOf([o.e, o.n, l])[0]", "1"),
        ("l", r#"[1, [2, {"x": 3}], "a"]"#),
        ("l + [o.e]", r#"[1, [2, {"x": 3}], "a", {}]"#),
        ("l[5 - 2 * 4 + 5]", "\"a\""),
        ("l[?7].orValue(0)", "0"),
    ] {
        assert_eq!(
            run(text, source).unwrap(),
            serde_json::from_str::<serde_json::Value>(expected).unwrap(),
            "{source}"
        );
    }
}

#[test]
fn extended_object_has_added_members() {
    let text = r#"{"extended": {"name": "c", "hidden": 1, "env": []}}"#;
    let value = |source| run(text, source).unwrap();
    assert_eq!(value("extended.type + extended.name"), "Appc");
    assert_eq!(value("extended.hidden && 'type' in extended && extended.size() == 4"), true);
    assert_eq!(value("extended").to_string(), r#"{"name":"c","env":[],"type":"App","hidden":true}"#);
    assert_eq!(value("extended == {'name': 'c', 'env': [], 'type': 'App', 'hidden': true}"), true);
}

#[test]
fn missing_member_has_help() {
    let error = run("{}", "params.x").unwrap_err();
    assert_eq!(error.message(), "params.x is not set");
    assert_eq!(error.help(), Some("provide a default: params.?x.orValue(...)"));
    assert_eq!(run("{}", "params.?x.orValue(1)").unwrap(), 1);
    assert_eq!(run("{}", "has(params.x)").unwrap(), false);
}

#[test]
fn charges_searches_in_large_values() {
    let members: Vec<_> = (0..10_000).map(|number| format!("\"key{number}\": {number}")).collect();
    let items: Vec<_> = (0..10_000).map(|number| number.to_string()).collect();
    let few = members[..32].join(",");
    let text = format!("{{\"o\": {{{}}}, \"l\": [{}], \"extended\": {{{few}}}}}", members.join(","), items.join(","));
    for source in [
        "o.map(k, o[k])",
        "o.map(k, k in o)",
        "l.map(i, l[9999])",
        "l.map(i, size(l))",
        "l.map(i, has(o.x))",
        "l.map(i, o.?x)",
        "l.map(i, [l, l, l, l, l, l, l, l].flatten())",
        "[l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l, l].flatten()",
        "l.map(i, hasEnv(o, 'x'))",
        "l.map(i, o == o)",
        "l.all(i, extended.aaaaaaaaaaaa == 1)",
    ] {
        let start = std::time::Instant::now();
        assert!(run(&text, source).unwrap_err().is_exhausted(), "{source}");
        assert!(start.elapsed() < std::time::Duration::from_secs(3), "{source}: {:?}", start.elapsed());
    }
    // Iterating over one such list or object stays within the limit.
    assert_eq!(run(&text, "o.all(k, k.startsWith('key'))").unwrap(), true);
    assert_eq!(run(&text, "l.filter(i, i % 2 == 0).size() == 5000").unwrap(), true);
}

#[test]
fn numbers_convert_to_quantities_like_kubernetes() {
    for (number, quantity) in [
        ("0.5", "500m"),
        ("2.0", "2"),
        ("-1.5", "-1500m"),
        ("0.0", "0"),
        ("0.1", "100m"),
        ("0.1 + 0.2", "300000001n"),
        ("1e-12", "1n"),
        ("-5e-300", "-1n"),
        ("1e18", "1E"),
        ("1e19", "9223372036854775807"),
        ("1234.5678", "1234567800u"),
    ] {
        assert_eq!(run("{}", &format!("string(quantity({number}))")).unwrap(), quantity, "{number}");
    }
    assert_eq!(run(r#"{"o":{"cpu":0.25}}"#, "string(quantity(o.cpu) * 2)").unwrap(), "500m");
    for (text, quantity) in [("0.30000000000000004", "300000001n"), ("1.00000000000000000001Ki", "1024000000001n")] {
        assert_eq!(run("{}", &format!("string(quantity('{text}'))")).unwrap(), quantity, "{text}");
    }
    for wrong in ["1e300", "-1e40", "double('NaN')", "double('Infinity')"] {
        assert!(run("{}", &format!("quantity({wrong})")).is_err(), "{wrong}");
    }
}
