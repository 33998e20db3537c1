//! Tests the messages for common errors of profile authors.

use pillion_expression::{Expression, ExpressionError, Path, Scope};
use serde_json::json;

use crate::{Environment, empty};

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

fn compile_error(source: &str) -> ExpressionError {
    Expression::compile(source, &scope()).expect_err(source)
}

/// Checks the range in the source, the message, and a part of the help of an error.
fn assert_error(source: &str, marked: &str, message: &str, help: &str) {
    let error = compile_error(source);
    assert_eq!(&source[error.range.clone()], marked, "{source}: {error:?}");
    assert_eq!(error.message, message, "{source}");
    let found = error.help.unwrap_or_default();
    assert!(found.contains(help), "{source}: {found}");
}

#[test]
fn suggests_names_for_unknown_ones() {
    assert_error("objekt.spec", "objekt", "there is no `objekt` here", "did you mean `object`?");
    assert_error("containers.map(c, d.name)", "d", "there is no `d` here", "`c`");
    assert_error(
        "xyzzyx",
        "xyzzyx",
        "there is no `xyzzyx` here",
        "available names: containers, lookups, namespaceObject",
    );
    assert_error("params.prot", "params.prot", "there is no `params.prot`", "did you mean `params.port`?");
    assert_error("variables['x']", "variables['x']", "there is no `variables.x`", "available members: role");
    assert_error("variables", "variables", "`variables` cannot be used as a value", "variables.x");
    assert_error("params[object.name]", "object.name", "the member of `params` must be a string literal", "params.x");
    assert_error("merge", "merge", "there is no `merge` here", "`merge` is a function");
    assert_error("containers.map(object, 1)", "object", "`object` is already defined", "another name");
}

#[test]
fn suggests_functions_for_unknown_ones() {
    assert_error("firstof([1])", "firstof", "there is no function `firstof`", "did you mean `firstOf`?");
    assert_error("'a'.lowerAsci()", "lowerAsci", "there is no function `lowerAsci`", "did you mean `lowerAscii`?");
    assert_error(
        "lowerAscii('a')",
        "lowerAscii",
        "there is no function `lowerAscii`",
        "it is called on a value: text.lowerAscii()",
    );
    assert_error(
        "object.merge({})",
        "merge",
        "there is no function `merge`",
        "it is not called on a value: merge(map, ...)",
    );
    assert_error(
        "base64.encoed('a')",
        "base64.encoed",
        "there is no function `base64.encoed`",
        "did you mean `base64.encode`?",
    );
    assert_error("'a'.split()", "'a'.split()", "`split` does not take 0 arguments", "text.split(separator, limit)");
    assert_error(
        "containers.map(c)",
        "containers.map(c)",
        "`map` takes a variable name and an expression",
        "list.map(x, value)",
    );
    assert_error("containers.filter('c', true)", "'c'", "the first argument of `filter` must be a variable name", "");
    assert_error("map(containers, c)", "map", "there is no function `map`", "it is called on a list");
    assert_error("timestamp('x')", "timestamp", "there is no function `timestamp`", "no access to the time");
    assert_error("object.length()", "length", "there is no function `length`", "size()");
    assert_error("has(object)", "has(object)", "`has` takes one field, has(a.b)", "in a");
    assert_error("has(object['a'])", "has(object['a'])", "`has` takes one field, has(a.b)", "'key' in a");
}

#[test]
fn explains_syntax_of_other_languages() {
    let here = "expected an operator or the end of the expression, but there is";
    assert_error("namespace.labels", "namespace", "`namespace` is a reserved word of CEL", "namespaceObject");
    assert_error("object.a = 1", "=", &format!("{here} `=`"), "==");
    assert_error("object.a and object.b", "and", &format!("{here} `and`"), "&&");
    assert_error("object.a or object.b", "or", &format!("{here} `or`"), "||");
    assert_error("object.a & object.b", "&", &format!("{here} `&`"), "&&");
    assert_error("not object.a", "object", &format!("{here} `object`"), "");
    assert_error("if object.a", "if", "`if` is a reserved word of CEL", "? yes : no");
    assert_error("'$' + $(POD)", "$", "the character '$' is not allowed outside of strings", "quotes");
    assert_error("${object.a}", "$", "the character '$' is not allowed outside of strings", "already");
    assert_error("object.'a'", "'a'", "expected the name of a field after the dot, but there is a string", "[\"a\"]");
    assert_error("object.", "", "expected the name of a field after the dot, but the expression ends", "");
    assert_error("(object.a", "", "expected `)` that closes the parenthesis, but the expression ends", "");
    assert_error("[1 2]", "2", "expected `,` or `]`, but there is a number", "");
    assert_error("{'a' 1}", "1", "expected `:` between key and value of the map's entry, but there is a number", "");
    assert_error(
        "object.a ? 1",
        "",
        "expected `:` of the conditional `condition ? yes : no`, but the expression ends",
        "",
    );
    assert_error("Pod{name: 'a'}", "{", "expected an operator, but there is `{`", "{'key': value}");
    assert_error("", "", "the expression is empty", "");
    assert_error(
        "object.a == \u{201c}x\u{201d}",
        "\u{201c}",
        "the character '\u{201c}' is not allowed outside of strings",
        "straight",
    );
    assert_error("9223372036854775808", "9223372036854775808", "this number is too large", "");
    // Reserved words and function names are valid field names.
    Expression::compile("request.namespace + object.package + object.merge", &scope()).unwrap();
}

#[test]
fn evaluation_errors_have_range_and_help() {
    let environment =
        Environment::new(json!({"object": {"spec": {"containers": [], "a": "x"}}, "owner": {"name": "web"}}));
    let assert_error = |source: &str, marked: &str, message: &str, help: &str| {
        let error = environment.error(source);
        assert_eq!(&source[error.range().unwrap()], marked, "{source}: {error:?}");
        assert_eq!(error.message(), message, "{source}");
        assert!(error.help().unwrap_or_default().contains(help), "{source}: {error:?}");
    };
    assert_error(
        "object.spec.container",
        "object.spec.container",
        "there is no field `container`",
        "did you mean `containers`?",
    );
    assert_error("1 + object.spec.zzz", "object.spec.zzz", "there is no field `zzz`", ".?zzz.orValue(...)");
    assert_error("object.spec.a.b", "object.spec.a.b", "a string has no fields, so it has no `b`", "");
    assert_error("'x' + owner.?name", "'x' + owner.?name", "+ does not take a string and an optional", ".orValue(...)");
    assert_error(
        "owner.?name == 'web'",
        "owner.?name == 'web'",
        "== does not take an optional and a string",
        ".orValue(...)",
    );
    assert_error("'a' + 1", "'a' + 1", "+ does not take a string and an int", "string(...)");
    assert_error("object.spec.a ? 1 : 2", "object.spec.a", "the condition is a string, not a bool", "compare it");
    assert_error(
        "object.?x.?y ? 1 : 2",
        "object.?x.?y",
        "the condition is an empty optional, not a bool",
        ".orValue(false)",
    );
    assert_error(
        "object.?x.map(y, y)",
        "object.?x",
        "a loop needs a list or a map, not an empty optional",
        ".orValue([])",
    );
    assert_error(
        "1.lowerAscii()",
        "1.lowerAscii()",
        "`lowerAscii` is called on a string, not on an int",
        "text.lowerAscii()",
    );
    assert_error(
        "merge({}, 1)",
        "merge({}, 1)",
        "argument 2 of `merge` must be a map, but is an int",
        "merge(map, ...)",
    );
    assert_error("'a'.contains(1)", "'a'.contains(1)", "argument 1 of `contains` must be a string, but is an int", "");
    assert_error("{}['a']", "{}['a']", "there is no key \"a\"", "[?\"a\"]");
    assert_error("b'x'", "b'x'", "bytes cannot be a value in an object", "base64.encode");
    assert_error(
        "{'a': {'b': type(1)}}",
        "{'a': {'b': type(1)}}",
        "a type cannot be a value in an object",
        "string(...)",
    );
}

#[test]
fn error_in_variable_has_range_of_use() {
    let environment = Environment::new(json!({"object": {}})).variables(&[("v", "1 + object.missing")]);
    let error = environment.error("'xxxxxxxxxxxxxxxxxxxxxxxxxxx' + string(variables.v)");
    assert_eq!(error.message(), "there is no field `missing`");
    assert_eq!(error.range().unwrap(), 39..50);
}

#[test]
fn lists_paths_that_expression_reads() {
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
fn evaluation_requests_only_reached_names() {
    let environment = Environment::new(json!({"a": 1, "b": 2, "c": 3}));
    environment.run("a == 1 ? b : c").unwrap();
    assert_eq!(*environment.read.borrow(), ["a", "b"]);
}

#[test]
fn only_scalars_are_inserted_into_text() {
    let environment = Environment::new(json!({"x": {"a": [1], "s": "$(POD)", "n": 1.5, "t": true, "i": 7}}));
    assert_eq!(environment.text("<${x.s}|${x.n}|${x.t}|${x.i}|$${x}>"), "<$(POD)|1.5|true|7|${x}>");
    let texts = [
        ("x.a", ".join(',')"),
        ("x", "pairs(...)"),
        ("x.?s", ".orValue('')"),
        ("null", ""),
        ("quantity('1')", "string(...)"),
    ];
    for (source, help) in texts {
        let expression = Expression::compile(source, &Scope::new().with("x")).unwrap();
        let error = expression.evaluate_text(&&environment, &mut pillion_expression::Meter::new());
        let error = error.unwrap_err();
        assert!(error.message().ends_with("cannot be inserted into a string"), "{error:?}");
        assert!(error.help().unwrap_or_default().contains(help), "{error:?}");
    }
}

#[test]
fn raw_strings_keep_backslashes() {
    assert_eq!(empty().value(r"'C:\\var\\run'"), r"C:\var\run");
    assert_eq!(empty().value(r"r'C:\var' + '\u00e9\n'"), "C:\\var\u{e9}\n");
}
