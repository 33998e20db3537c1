//! Common mistakes of authors, and their error messages.

use pillion_expression::{Expression, ExpressionError, Path, Scope};
use serde_json::json;

use crate::{World, empty};

fn scope() -> Scope {
    Scope::new()
        .with("object")
        .with("namespaceObject")
        .with("request")
        .with("containers")
        .with("owner")
        .with_members("params", ["port", "names"])
        .with_members("variables", ["role"])
        .with_any_members("lookups")
}

fn fault(source: &str) -> ExpressionError {
    Expression::compile(source, &scope()).expect_err(source)
}

/// Checks the marked text and the message of an error, and a part of its help.
fn tells(source: &str, marked: &str, message: &str, help: &str) {
    let error = fault(source);
    assert_eq!(&source[error.range.clone()], marked, "{source}: {error:?}");
    assert_eq!(error.message, message, "{source}");
    let found = error.help.unwrap_or_default();
    assert!(found.contains(help), "{source}: {found}");
}

#[test]
fn names_that_are_not_there_are_told_with_those_that_were_meant() {
    tells("objekt.spec", "objekt", "there is no `objekt` here", "did you mean `object`?");
    tells("containers.map(c, d.name)", "d", "there is no `d` here", "`c`");
    tells("xyzzyx", "xyzzyx", "there is no `xyzzyx` here", "there are: containers, lookups, namespaceObject");
    tells("params.prot", "params.prot", "there is no `params.prot`", "did you mean `params.port`?");
    tells("variables['x']", "variables['x']", "there is no `variables.x`", "there are: role");
    tells("variables", "variables", "`variables` is not a value of its own", "variables.x");
    tells("params[object.name]", "object.name", "what is wanted of `params` has to stand here as text", "params.x");
    tells("merge", "merge", "there is no `merge` here", "`merge` is a function");
    tells("containers.map(object, 1)", "object", "`object` means something else already", "another name");
}

#[test]
fn functions_that_are_not_there_are_told_with_those_that_were_meant() {
    tells("firstof([1])", "firstof", "there is no function `firstof`", "did you mean `firstOf`?");
    tells("'a'.lowerAsci()", "lowerAsci", "there is no function `lowerAsci`", "did you mean `lowerAscii`?");
    tells(
        "lowerAscii('a')",
        "lowerAscii",
        "there is no function `lowerAscii`",
        "it is called on a value: text.lowerAscii()",
    );
    tells("object.merge({})", "merge", "there is no function `merge`", "it is not called on a value: merge(map, ...)");
    tells(
        "base64.encoed('a')",
        "base64.encoed",
        "there is no function `base64.encoed`",
        "did you mean `base64.encode`?",
    );
    tells("'a'.split()", "'a'.split()", "`split` does not take 0 arguments", "text.split(separator, limit)");
    tells(
        "containers.map(c)",
        "containers.map(c)",
        "`map` takes a name and what is done with it",
        "list.map(x, value)",
    );
    tells("containers.filter('c', true)", "'c'", "the first argument of `filter` is a name for each value", "");
    tells("map(containers, c)", "map", "there is no function `map`", "it is called on a list");
    tells("timestamp('x')", "timestamp", "there is no function `timestamp`", "no time");
    tells("object.length()", "length", "there is no function `length`", "size()");
    tells("has(object)", "has(object)", "`has` takes one field, has(a.b)", "in a");
    tells("has(object['a'])", "has(object['a'])", "`has` takes one field, has(a.b)", "'key' in a");
}

#[test]
fn syntax_of_elsewhere_is_told_with_that_of_here() {
    let here = "expected an operator or the end of the expression, but there is";
    tells("namespace.labels", "namespace", "`namespace` is a reserved word of CEL", "namespaceObject");
    tells("object.a = 1", "=", &format!("{here} `=`"), "==");
    tells("object.a and object.b", "and", &format!("{here} `and`"), "&&");
    tells("object.a or object.b", "or", &format!("{here} `or`"), "||");
    tells("object.a & object.b", "&", &format!("{here} `&`"), "&&");
    tells("not object.a", "object", &format!("{here} `object`"), "");
    tells("if object.a", "if", "`if` is a reserved word of CEL", "? yes : no");
    tells("'$' + $(POD)", "$", "an expression has no character '$' outside of its strings", "quotes");
    tells("${object.a}", "$", "an expression has no character '$' outside of its strings", "already");
    tells("object.'a'", "'a'", "expected the name of a field behind the dot, but there is a string", "[\"a\"]");
    tells("object.", "", "expected the name of a field behind the dot, but the expression ends", "");
    tells("(object.a", "", "expected `)` that closes the parenthesis, but the expression ends", "");
    tells("[1 2]", "2", "expected `,` or `]`, but there is a number", "");
    tells("{'a' 1}", "1", "expected `:` between key and value of the map's entry, but there is a number", "");
    tells("object.a ? 1", "", "expected `:` of the conditional `condition ? yes : no`, but the expression ends", "");
    tells("Pod{name: 'a'}", "{", "expected an operator, but there is `{`", "{'key': value}");
    tells("", "", "the expression is empty", "");
    tells(
        "object.a == \u{201c}x\u{201d}",
        "\u{201c}",
        "an expression has no character '\u{201c}' outside of its strings",
        "straight",
    );
    tells("9223372036854775808", "9223372036854775808", "this number is too large", "");
    // Reserved words and names of functions are valid as names of fields.
    Expression::compile("request.namespace + object.package + object.merge", &scope()).unwrap();
}

#[test]
fn what_goes_wrong_in_a_run_is_told_with_its_place() {
    let world = World::new(json!({"object": {"spec": {"containers": [], "a": "x"}}, "owner": {"name": "web"}}));
    let tells = |source: &str, marked: &str, message: &str, help: &str| {
        let error = world.error(source);
        assert_eq!(&source[error.range().unwrap()], marked, "{source}: {error:?}");
        assert_eq!(error.message(), message, "{source}");
        assert!(error.help().unwrap_or_default().contains(help), "{source}: {error:?}");
    };
    tells(
        "object.spec.container",
        "object.spec.container",
        "there is no field `container`",
        "did you mean `containers`?",
    );
    tells("1 + object.spec.zzz", "object.spec.zzz", "there is no field `zzz`", ".?zzz.orValue(...)");
    tells("object.spec.a.b", "object.spec.a.b", "a string has no fields; `b` was asked for", "");
    tells("'x' + owner.?name", "'x' + owner.?name", "+ does not take a string and an optional", ".orValue(...)");
    tells("owner.?name == 'web'", "owner.?name == 'web'", "== does not take an optional and a string", ".orValue(...)");
    tells("'a' + 1", "'a' + 1", "+ does not take a string and an int", "string(...)");
    tells("object.spec.a ? 1 : 2", "object.spec.a", "the condition is a string, not a bool", "compare it");
    tells("object.?x.?y ? 1 : 2", "object.?x.?y", "the condition is an empty optional, not a bool", ".orValue(false)");
    tells(
        "object.?x.map(y, y)",
        "object.?x",
        "a loop goes over a list or a map, not an empty optional",
        ".orValue([])",
    );
    tells("1.lowerAscii()", "1.lowerAscii()", "`lowerAscii` is called on a string, not on an int", "text.lowerAscii()");
    tells("merge({}, 1)", "merge({}, 1)", "argument 2 of `merge` has to be a map, and is an int", "merge(map, ...)");
    tells("'a'.contains(1)", "'a'.contains(1)", "argument 1 of `contains` has to be a string, and is an int", "");
    tells("{}['a']", "{}['a']", "there is no key \"a\"", "[?\"a\"]");
    tells("b'x'", "b'x'", "bytes cannot stand in an object", "base64.encode");
    tells("{'a': {'b': type(1)}}", "{'a': {'b': type(1)}}", "a type cannot stand in an object", "string(...)");
}

#[test]
fn an_error_in_a_variable_is_told_at_its_use() {
    let world = World::new(json!({"object": {}})).variables(&[("v", "1 + object.missing")]);
    let error = world.error("'xxxxxxxxxxxxxxxxxxxxxxxxxxx' + string(variables.v)");
    assert_eq!(error.message(), "there is no field `missing`");
    assert_eq!(error.range().unwrap(), 39..50);
}

#[test]
fn what_an_expression_reads_is_known_from_its_text() {
    let source =
        "object.spec.?hostNetwork.orValue(false) || has(object.metadata.labels.x) || object.spec['a'].b == params.port
        || variables.role in params.names || containers.exists(c, c.name == lookups['cm'].data.x) || request == object";
    let expression = Expression::compile(source, &scope()).unwrap();
    let found: Vec<_> =
        expression.paths().iter().map(|Path { name, fields }| format!("{name}.{}", fields.join("."))).collect();
    assert_eq!(
        found,
        [
            "containers.",
            "lookups.cm.data.x",
            "object.",
            "object.metadata.labels.x",
            "object.spec.a.b",
            "object.spec.hostNetwork",
            "params.names",
            "params.port",
            "request.",
            "variables.role",
        ]
    );
    assert!(expression.uses("object") && !expression.uses("owner") && !expression.uses("c"));
    assert_eq!(expression.members("params").collect::<Vec<_>>(), ["names", "port"]);
    assert_eq!(expression.members("lookups").collect::<Vec<_>>(), ["cm"]);
    assert_eq!(expression.source(), source);
}

#[test]
fn only_what_is_reached_is_asked_for() {
    let world = World::new(json!({"a": 1, "b": 2, "c": 3}));
    world.run("a == 1 ? b : c").unwrap();
    assert_eq!(*world.read.borrow(), ["a", "b"]);
}

#[test]
fn only_texts_numbers_and_bools_are_put_into_a_text() {
    let world = World::new(json!({"x": {"a": [1], "s": "$(POD)", "n": 1.5, "t": true, "i": 7}}));
    assert_eq!(world.text("<${x.s}|${x.n}|${x.t}|${x.i}|$${x}>"), "<$(POD)|1.5|true|7|${x}>");
    let texts = [
        ("x.a", ".join(',')"),
        ("x", "pairs(...)"),
        ("x.?s", ".orValue('')"),
        ("null", ""),
        ("quantity('1')", "string(...)"),
    ];
    for (source, help) in texts {
        let expression = Expression::compile(source, &Scope::new().with("x")).unwrap();
        let error = expression.evaluate_text(&crate::Borrowed { world: &world }, &mut pillion_expression::Meter::new());
        let error = error.unwrap_err();
        assert!(error.message().ends_with("cannot be put into a text"), "{error:?}");
        assert!(error.help().unwrap_or_default().contains(help), "{error:?}");
    }
}

#[test]
fn literals_keep_their_escapes_apart() {
    assert_eq!(empty().value(r"'C:\\var\\run'"), r"C:\var\run");
    assert_eq!(empty().value(r"r'C:\var' + '\u00e9\n'"), "C:\\var\u{e9}\n");
}
