use super::*;
use proptest::prelude::*;
use rstest::rstest;

fn rule(when: &str, then: RuleAction) -> ApprovalRule {
    ApprovalRule {
        when: when.to_owned(),
        then,
    }
}

fn ask(when: &str) -> ApprovalRule {
    rule(when, RuleAction::Ask)
}

fn resource(module: &str, kind: &str, action: &str) -> Resource {
    let place = if module.is_empty() {
        String::new()
    } else {
        format!("{module}.")
    };
    Resource {
        address: format!("{place}{kind}.main"),
        kind: kind.to_owned(),
        name: "main".to_owned(),
        module: module.to_owned(),
        action: action.to_owned(),
    }
}

/// Returns a plan that replaces a database and creates a bucket.
fn plan() -> Plan {
    Plan {
        add: 2,
        change: 0,
        destroy: 1,
        resources: vec![
            resource("module.db", "aws_db_instance", "replace"),
            resource("", "aws_s3_bucket", "create"),
        ],
    }
}

fn matches(when: &str) -> bool {
    let rules = [ask(when)];
    check(&rules).unwrap();
    let matched = judge(&rules, &plan());
    for rule in &matched {
        assert_eq!(rule.unclear, None, "{rule}");
    }
    !matched.is_empty()
}

#[rstest]
#[case("plan.destroy > 0", true)]
#[case("plan.destroy > 1", false)]
#[case("plan.add + plan.change + plan.destroy >= 3", true)]
#[case(
    "plan.resources.exists(r, r.type == 'aws_db_instance' && r.action in ['delete', 'replace'])",
    true
)]
#[case(
    "plan.resources.exists(r, r.type == 'aws_db_instance' && r.action == 'delete')",
    false
)]
#[case("plan.resources.all(r, r.action == 'create')", false)]
#[case(
    "plan.resources.exists(r, r.module == 'module.db' && r.name == 'main')",
    true
)]
#[case("plan.resources.exists(r, r.address.startsWith('module.db.'))", true)]
#[case(
    "plan.resources.exists(r, r.address.matches('^aws_s3_bucket\\\\.'))",
    true
)]
#[case("plan.resources.filter(r, r.module == '').size() == 1", true)]
#[case("size(plan.resources) > 100 || plan.destroy == 1", true)]
#[case("plan.resources.map(r, r.type).exists(t, t.contains('_iam_'))", false)]
#[case("plan.resources.exists(plan, plan.type == 'aws_s3_bucket')", true)]
#[case(
    "plan.resources.all(r, plan.resources.exists(s, s.module == r.module))",
    true
)]
#[case("has(plan.destroy) && type(plan.add) == int", true)]
#[case("{'a': plan.destroy}.a == [1, 2][0]", true)]
#[case("true", true)]
#[case(" false\n", false)]
fn rule_reads_change_counts_and_all_resources(#[case] when: &str, #[case] wanted: bool) {
    assert_eq!(matches(when), wanted, "{when}");
}

#[rstest]
#[case("plan.destroy >", "invalid CEL expression: ")]
#[case("", "invalid CEL expression: ")]
#[case("plan.destroy > 0 plan", "(line 1, column 18)")]
#[case(
    "plans.destroy > 0",
    r#"undeclared reference "plans"; available: "plan""#
)]
#[case(
    "plan.destroyed > 0",
    r#"plan has no field "destroyed"; available fields: add, change, destroy, resources"#
)]
#[case(
    "plan.resources.exists(r, q.type == 'x')",
    r#"undeclared reference "q""#
)]
#[case(
    "plan.resources.exists(r, true) && r.type == 'x'",
    r#"undeclared reference "r""#
)]
#[case("size([x]) > 0", r#"undeclared reference "x""#)]
#[case("{'a': y}.a", r#"undeclared reference "y""#)]
#[case("has(plan.forget)", r#"plan has no field "forget""#)]
#[case(
    "plan.destroy",
    "the result must be a boolean, for example `plan.destroy > 0`"
)]
#[case("'yes'", "the result must be a boolean")]
#[case("plan", "the result must be a boolean")]
#[case("[plan.destroy > 0]", "the result must be a boolean")]
#[case(
    "plan.resources.all(a, plan.resources.all(b, plan.resources.all(c, true)))",
    "loops are nested more than 2 levels deep"
)]
fn invalid_rule_is_refused_with_its_index(#[case] when: &str, #[case] wanted: &str) {
    let bad = check(&[ask("true"), ask(when)]).unwrap_err();
    assert_eq!(bad.index, 1);
    let text = bad.to_string();
    assert!(
        text.starts_with("spec.approval.rules[1].when: ") && text.contains(wanted),
        "{text}"
    );
}

#[rstest]
#[case("plan.resources[7].action == 'delete'")]
#[case("plan.resources.exists(r, r.kind == 'x')")]
#[case("plan.resources[0].type")]
#[case("size(plan.resources)")]
#[case("plan.destroy > '0'")]
#[case("no_such_function(plan)")]
#[case("1 / (plan.change) > 0")]
#[case("plan.resources.exists(r, r.address.matches('('))")]
#[case("plan.destroy >")]
fn rule_with_evaluation_error_counts_as_matching(#[case] when: &str) {
    let matched = judge(&[rule(when, RuleAction::Deny)], &plan());
    let why = matched[0].unclear.clone().unwrap();
    assert!(!why.is_empty() && why.chars().count() <= MAX_REASON_LENGTH);
    let text = matched[0].to_string();
    let wanted = format!(
        "spec.approval.rules[0] cannot be evaluated ({why}) and is handled as matching: {}",
        when.trim()
    );
    assert_eq!(text, wanted);
}

#[test]
fn only_matching_rules_are_returned_with_their_index() {
    let rules = [
        ask("plan.destroy > 5"),
        rule("plan.destroy > 0", RuleAction::Deny),
        ask("plan.add > 1"),
    ];
    let matched = judge(&rules, &plan());
    let actions: Vec<_> = matched.iter().map(|rule| (rule.index, rule.then)).collect();
    assert_eq!(actions, [(1, RuleAction::Deny), (2, RuleAction::Ask)]);
    assert_eq!(
        matched[0].to_string(),
        "spec.approval.rules[1]: plan.destroy > 0"
    );
}

#[test]
fn rule_reads_all_changes_of_a_large_plan() {
    let mut plan = Plan::default();
    for _ in 0..2_000 {
        plan.resources.push(resource("", "null_resource", "create"));
    }
    plan.resources
        .push(resource("", "aws_db_instance", "delete"));
    let rule = ask("plan.resources.exists(r, r.action == 'delete')");
    assert_eq!(judge(&[rule], &plan).len(), 1);
}

#[test]
fn without_rules_nothing_matches() {
    assert!(check(&[]).is_ok());
    assert!(judge(&[], &plan()).is_empty());
}

#[test]
fn rule_has_1000_bytes_at_most() {
    let rule_of = |bytes: usize| [ask(&format!("{:>bytes$}", "true"))];
    assert_eq!(check(&rule_of(1_000)), Ok(()));
    let bad = check(&rule_of(1_001)).unwrap_err();
    assert_eq!(bad.what, "the expression is longer than 1000 bytes");
}

/// Expressions of the maximum depth and length that the API accepts: 1000 characters.
#[rstest]
#[case("(".repeat(1_000))]
#[case(format!("{}true{}", "(".repeat(498), ")".repeat(498)))]
#[case(format!("{}true", "!".repeat(996)))]
#[case(format!("{}1 > 0", "-".repeat(990)))]
#[case("[".repeat(1_000))]
#[case("{".repeat(1_000))]
#[case(format!("plan{}", ".a".repeat(498)))]
#[case(format!("plan{}", "[0]".repeat(332)))]
#[case(format!("plan{}", ".size()".repeat(142)))]
#[case(format!("true{}", "?true:true".repeat(99)))]
#[case(format!("true{}", "||true".repeat(166)))]
#[case(format!("0{}>0", "+1".repeat(498)))]
#[case("plan.resources.exists(r, ".repeat(40))]
#[case(format!("{}true{}", "[1].all(r,".repeat(80), ")".repeat(80)))]
#[case(format!("{}true{}", "[1,1].all(r,".repeat(70), ")".repeat(70)))]
fn deeply_nested_rule_causes_no_stack_overflow(#[case] when: String) {
    let rules = [ask(&when)];
    let good = check(&rules).is_ok();
    let judged = judge(&rules, &plan());
    assert!(good || judged.iter().all(|rule| rule.unclear.is_some()));
}

/// Generates valid and invalid expressions from fragments.
fn soup() -> impl Strategy<Value = String> {
    let pieces = [
        "plan",
        "plan.destroy",
        "plan.resources",
        "r",
        "r.type",
        ".exists(r, ",
        ".all(r,",
        ".map(",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        ".",
        "?",
        ":",
        "&&",
        "||",
        "!",
        "-",
        "+",
        "*",
        "/",
        "%",
        "==",
        ">",
        "in",
        "has(",
        "size(",
        "int(",
        "0",
        "1",
        "9223372036854775807",
        "-1",
        "1u",
        "1.5",
        "0x",
        "'a'",
        "\"",
        "'",
        "\\",
        "b'x'",
        "r'",
        "null",
        "true",
        "false",
        " ",
        "\n",
        "//",
        "`",
        "é",
        "\u{1F600}",
        "\0",
        "#",
        "matches",
        "type(",
        "@",
        "_",
    ];
    let piece = proptest::sample::select(pieces.to_vec());
    proptest::collection::vec(piece, 0..25).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn arbitrary_text_as_rule_causes_no_panic(when in prop_oneof![soup(), any::<String>()]) {
        let rules = [ask(&when)];
        let bad = check(&rules).err();
        let matched = judge(&rules, &plan());
        if let Some(bad) = bad {
            prop_assert!(bad.to_string().starts_with("spec.approval.rules[0].when: "));
        }
        prop_assert!(matched.len() <= 1);
    }

    /// Numbers are not compared as strings: `10 > 9` is true.
    #[test]
    fn change_counts_are_compared_as_integers(
        destroy in 0_i64..50, limit in 0_i64..50, then in prop_oneof![Just(RuleAction::Ask), Just(RuleAction::Deny)]
    ) {
        let plan = Plan { destroy, ..Plan::default() };
        let rules = [rule(&format!("plan.destroy > {limit}"), then)];
        prop_assert!(check(&rules).is_ok());
        let matched = judge(&rules, &plan);
        prop_assert_eq!(!matched.is_empty(), destroy > limit);
        prop_assert!(matched.iter().all(|rule| rule.then == then && rule.unclear.is_none()));
    }
}
