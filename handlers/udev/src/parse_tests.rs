use proptest::prelude::*;

use super::*;

fn explain(rule: &str) -> String {
    rule.parse::<Rule>().unwrap_err().explain(rule)
}

#[test]
fn twelve_fields_are_parsed() {
    for (text, scope, key) in [
        (r#"ATTR{idVendor}=="x""#, Scope::Device, Key::Attr("idVendor".into())),
        (r#"ATTRS{power/control}=="x""#, Scope::Lineage, Key::Attr("power/control".into())),
        (r#"DEVPATH=="x""#, Scope::Device, Key::Devpath),
        (r#"DRIVER=="x""#, Scope::Device, Key::Driver),
        (r#"DRIVERS=="x""#, Scope::Lineage, Key::Driver),
        (r#"ENV{a name}=="x""#, Scope::Device, Key::Env("a name".into())),
        (r#"KERNEL=="x""#, Scope::Device, Key::Kernel),
        (r#"KERNELS=="x""#, Scope::Lineage, Key::Kernel),
        (r#"SUBSYSTEM=="x""#, Scope::Device, Key::Subsystem),
        (r#"SUBSYSTEMS=="x""#, Scope::Lineage, Key::Subsystem),
        (r#"TAG=="x""#, Scope::Device, Key::Tag),
        (r#"TAGS=="x""#, Scope::Lineage, Key::Tag),
    ] {
        let filter = Filter { scope, key, operator: Operator::Equal, pattern: Pattern::parse("x").unwrap() };
        assert_eq!(text.parse(), Ok(Rule { filters: vec![filter] }), "{text}");
    }
}

#[test]
fn blanks_are_allowed_between_the_parts() {
    let tight: Rule = r#"KERNEL!="video*",ATTR{a b}=="c""#.parse().unwrap();
    assert_eq!(" KERNEL != \"video*\"\t,\n ATTR{a b}\n==\t\"c\" \n".parse(), Ok(tight));
}

#[test]
fn value_may_hold_an_escaped_quote() {
    let rule: Rule =
        r#"ATTR{name}=="a \"b\" {c}, $d \\e\n""#.parse().unwrap_or_else(|error: RuleError| panic!("{error}"));
    assert_eq!(rule.filters.len(), 1);
    assert_eq!(rule.filters[0].pattern.to_string(), r#"a "b" {c}, $d \\e\n"#);
}

#[test]
fn comment_lines_and_a_comma_at_the_end_are_read() {
    let text = "# a camera\n  # of ours\nKERNEL==\"video*\",\n# with a tag\n  TAG==\"#x\" ,\n # the end";
    assert_eq!(text.parse::<Rule>().unwrap().to_string(), r##"KERNEL=="video*", TAG=="#x""##);
    assert_eq!(r#"KERNEL=="a","#.parse::<Rule>().unwrap().to_string(), r#"KERNEL=="a""#);
}

#[test]
fn error_shows_the_rule_with_carets() {
    for (rule, explanation) in [
        (r#"KERNAL=="video*""#, "unknown field 'KERNAL', did you mean 'KERNEL'?\n  KERNAL==\"video*\"\n  ^^^^^^"),
        (r#"kernel=="a""#, "unknown field 'kernel', did you mean 'KERNEL'?\n  kernel==\"a\"\n  ^^^^^^"),
        (
            r#"KERNEL=="a", COLOUR=="red""#,
            "unknown field 'COLOUR', expected one of ATTR, ATTRS, DEVPATH, DRIVER, DRIVERS, ENV, KERNEL, KERNELS, \
             SUBSYSTEM, SUBSYSTEMS, SYMLINK, TAG, TAGS\n  KERNEL==\"a\", COLOUR==\"red\"\n               ^^^^^^",
        ),
        ("", "the rule is empty\n  \n  ^"),
        (" \t", "the rule is empty\n    \n    ^"),
        ("\"video0\"", "expected a field such as KERNEL or ATTRS{idVendor}\n  \"video0\"\n  ^"),
        (r#"KERNEL=="a",,"#, "expected a field such as KERNEL or ATTRS{idVendor}\n  KERNEL==\"a\",,\n              ^"),
        (
            r#"KERNEL=="a", # b"#,
            "expected a field such as KERNEL or ATTRS{idVendor}\n  KERNEL==\"a\", # b\n               ^",
        ),
        (r#"KERNEL=="a" TAG=="b""#, "expected ',' between filters\n  KERNEL==\"a\" TAG==\"b\"\n              ^"),
        (r#"KERNEL=="a"; TAG=="b""#, "expected ',' between filters\n  KERNEL==\"a\"; TAG==\"b\"\n             ^"),
        (r#"KERNEL = "null""#, "'=' assigns; only '==' and '!=' match\n  KERNEL = \"null\"\n         ^"),
        (r#"TAG+="uaccess""#, "'+=' assigns; only '==' and '!=' match\n  TAG+=\"uaccess\"\n     ^^"),
        (r#"KERNEL~"a""#, "expected '==' or '!='\n  KERNEL~\"a\"\n        ^"),
        ("KERNEL", "expected '==' or '!='\n  KERNEL\n        ^"),
        ("KERNEL==null", "expected a value in double quotes\n  KERNEL==null\n          ^"),
        (r#"KERNEL==e"null""#, "expected a value in double quotes\n  KERNEL==e\"null\"\n          ^"),
        (r#"KERNEL=="null"#, "the closing '\"' is missing\n  KERNEL==\"null\n          ^"),
        (r#"KERNEL=="null\""#, "the closing '\"' is missing\n  KERNEL==\"null\\\"\n          ^"),
        (r#"ATTR=="a""#, "'ATTR' needs a name in braces, as in ATTR{name}\n  ATTR==\"a\"\n  ^^^^"),
        (r#"ENV{}=="a""#, "'ENV' needs a name in braces, as in ENV{name}\n  ENV{}==\"a\"\n  ^^^^^"),
        (r#"KERNEL{x}=="a""#, "'KERNEL' takes no name in braces\n  KERNEL{x}==\"a\"\n        ^^^"),
        (r#"ENV{ID=="a""#, "the closing '}' is missing\n  ENV{ID==\"a\"\n     ^"),
        (
            r#"ATTR{../name}=="a""#,
            "an attribute is a path below the device, without '.', '..', '$', '%' or '[subsystem/kernel]'; \
             ATTRS also looks at the ancestors\n  ATTR{../name}==\"a\"\n       ^^^^^^^",
        ),
        (
            r#"ATTR{a}=="\"é\"|x[0-9""#,
            "'[' is not closed by ']' before the end or the next '|'; write '\\[' for the character itself\n  \
             ATTR{a}==\"\\\"é\\\"|x[0-9\"\n                   ^",
        ),
    ] {
        assert_eq!(explain(rule), explanation, "{rule}");
    }
}

#[test]
fn attribute_is_a_path_below_the_device() {
    let kind = |name: &str| format!("ATTRS{{{name}}}!=\"x\"").parse::<Rule>().map_err(|error| error.kind);
    for name in ["..", "a/../b", "/a", "a/", "a//b", "./a", "$kernel", "a%n", "[net/lo]address", "a\0b"] {
        assert_eq!(kind(name), Err(RuleErrorKind::AttributeName), "{name:?}");
    }
    for name in ["idVendor", "power/control", "queue/iosched/x", "a..b", ".a", "in_voltage0-1", "a [b]"] {
        assert!(kind(name).is_ok(), "{name:?}");
    }
}

#[test]
fn column_counts_characters() {
    let rule = r#"KERNEL=="é", NOPE=="x""#;
    assert_eq!(rule.parse::<Rule>().unwrap_err().column(rule), 14);
}

#[test]
fn long_rule_is_shown_in_part() {
    let rule = format!("KERNEL==\"{}\", KERNAL==\"{}\"", "a".repeat(5000), "b".repeat(5000));
    let explanation = explain(&rule);
    let lines: Vec<&str> = explanation.lines().collect();
    assert!(explanation.len() < 400, "{explanation}");
    assert_eq!(lines[1].find("KERNAL"), lines[2].find('^').map(|at| at + "…".len() - 1));
    assert!(explain(&"X".repeat(9000)).len() < 400);
}

#[test]
fn other_udev_keys_are_refused_by_name() {
    for rule in [
        r#"ACTION=="add""#,
        r#"CONST{arch}=="x86""#,
        r#"GOTO="end""#,
        r#"GROUP="video""#,
        r#"IMPORT{program}="v4l_id $devnode""#,
        r#"LABEL="end""#,
        r#"MODE="0660""#,
        r#"NAME=="eth0""#,
        r#"OPTIONS+="watch""#,
        r#"OWNER="root""#,
        r#"PROGRAM=="/bin/true""#,
        r#"RESULT=="ok""#,
        r#"RUN{builtin}+="uaccess""#,
        r#"SECLABEL{selinux}="x""#,
        r#"SYSCTL{kernel/x}=="1""#,
        r#"TEST{0644}=="x""#,
        r#"WAIT_FOR="queue/read_q""#,
    ] {
        let error = format!(r#"KERNEL=="a", {rule}"#).parse::<Rule>().unwrap_err();
        let name = rule.split(['=', '{', '+']).next().unwrap();
        assert!(matches!(error.kind, RuleErrorKind::UnusableField(field, _) if field == name), "{error}");
        assert_eq!(error.span, 13..13 + name.len());
    }
    for (rule, why) in [
        (r#"ACTION=="add""#, "'ACTION' matches what happens to a device, and rules here match devices that are there"),
        (r#"TEST=="/dev/x""#, "'TEST' asks whether a file exists, and this handler sees no files"),
        (r#"RUN+="x""#, "'RUN' acts on devices, and rules here only match them"),
    ] {
        assert_eq!(rule.parse::<Rule>().unwrap_err().to_string(), why);
    }
}

#[test]
fn rules_refused_upstream_are_refused() {
    for rule in
        ["TAG-=\"uaccess\"", "TAG:=\"uaccess\"", "TAG=\"uaccess\"", "TEST{key}==\"value", "SECLABEL{key}==\"value"]
    {
        assert!(rule.parse::<Rule>().is_err(), "{rule}");
    }
}

fn filter() -> impl Strategy<Value = Filter> {
    let name = "[A-Za-z][A-Za-z0-9_ .]{0,8}(/[a-z]{1,4})?";
    let key = prop_oneof![
        name.prop_map(Key::Attr),
        name.prop_map(Key::Env),
        Just(Key::Devpath),
        Just(Key::Driver),
        Just(Key::Kernel),
        Just(Key::Subsystem),
        Just(Key::Symlink),
        Just(Key::Tag),
    ];
    let scope = prop_oneof![Just(Scope::Device), Just(Scope::Lineage)];
    let operator = prop_oneof![Just(Operator::Equal), Just(Operator::NotEqual)];
    // A value that ends in a backslash can't be written.
    let pattern = "([\\PC\"|*?]{0,12}[^\\\\\\pC])?";
    let pattern = pattern.prop_filter_map("a pattern", |text| Pattern::parse(&text).ok());
    (scope, key, operator, pattern).prop_map(|(scope, key, operator, pattern)| {
        let scope = if matches!(key, Key::Env(_) | Key::Devpath | Key::Symlink) { Scope::Device } else { scope };
        Filter { scope, key, operator, pattern }
    })
}

proptest! {
    #[test]
    fn printed_rule_parses_to_itself(filters in prop::collection::vec(filter(), 1..5)) {
        let rule = Rule { filters };
        prop_assert_eq!(rule.to_string().parse(), Ok(rule));
    }

    #[test]
    fn arbitrary_text_causes_no_panic(text in "\\PC{0,60}|[A-Z{}=!\"\\[\\]|, \\\\]{0,60}") {
        if let Err(error) = text.parse::<Rule>() {
            prop_assert!(error.explain(&text).lines().count() == 3);
        }
    }

    #[test]
    fn mutated_rules_cause_no_panic(at in 0usize..60, insert in "\\PC{0,3}") {
        let rule = r#"SUBSYSTEM=="video4linux|media", ATTRS{idVendor}!="04[6-9a]d""#;
        let (head, tail) = rule.split_at(at.min(rule.len()));
        let text = format!("{head}{insert}{}", tail.get(1..).unwrap_or_default());
        if let Err(error) = text.parse::<Rule>() {
            prop_assert!(error.column(&text) <= text.chars().count() + 1);
        }
    }
}
