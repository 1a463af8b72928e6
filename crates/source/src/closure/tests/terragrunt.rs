//! Closures of units of Terragrunt.

use super::*;

/// Computes the closure of the unit in folder `root` with file contents by path. All other files are empty.
fn close_unit(tree: &Tree, contents: &[(&str, &str)], root: &str) -> Selection {
    let contents: HashMap<_, _> = contents.iter().copied().collect();
    let mut closure = Closure::new(Arc::new(tree.clone()), false);
    let wrapper = Some(WrapperName::Terragrunt);
    closure.start(root, &[], wrapper).unwrap();
    loop {
        let requests = closure.files_to_read();
        if requests.is_empty() {
            return closure.finish(LIMITS).unwrap();
        }
        for file in requests {
            let text = contents
                .get(file.path.as_str())
                .copied()
                .unwrap_or_default();
            let facts = module::read(&file.path, text.as_bytes());
            closure.supply(&file, &facts).unwrap();
        }
    }
}

fn live() -> Tree {
    tree(&[
        "README.md",
        "common.tfvars",
        "lib/x/main.tf",
        "live/common.yaml",
        "live/other.yaml",
        "live/prod/app/terragrunt.hcl",
        "live/prod/db/terragrunt.hcl",
        "live/prod/env.hcl",
        "live/prod/env.yaml",
        "live/prod/net/terragrunt.hcl",
        "live/root.hcl",
        "modules/app/main.tf",
        "modules/app/policy.json",
        "modules/net/main.tf",
        "modules/unused/main.tf",
    ])
}

#[test]
fn unit_includes_configs_dependencies_and_module() {
    let root = r#"
locals { common = yamldecode(file("common.yaml")) }
remote_state {
  backend = "s3"
  config  = { key = "${path_relative_to_include()}/terraform.tfstate" }
}
"#;
    let app = r#"
include "root" {
  path = find_in_parent_folders("root.hcl")
}
locals {
  env     = read_terragrunt_config(find_in_parent_folders("env.hcl"))
  modules = "${dirname(find_in_parent_folders("root.hcl"))}/../modules"
}
dependency "net" { config_path = "../net" }
terraform {
  source = "${local.modules}/app"
  extra_arguments "vars" {
    commands           = get_terraform_commands_that_need_vars()
    required_var_files = ["${get_repo_root()}/common.tfvars"]
  }
}
"#;
    let contents = [
        ("live/root.hcl", root),
        ("live/prod/app/terragrunt.hcl", app),
        (
            "live/prod/env.hcl",
            "locals { e = yamldecode(file(\"${get_terragrunt_dir()}/env.yaml\")) }\n",
        ),
        (
            "live/prod/net/terragrunt.hcl",
            "terraform {\n  source = \"../../../modules//net\"\n}\n",
        ),
        ("modules/app/main.tf", &call("../../lib/x")),
    ];
    let closure = close_unit(&live(), &contents, "live/prod/app");
    assert_eq!(closure.whole, None);
    assert_eq!(closure.backend.as_deref(), Some("s3"));
    assert_eq!(
        paths(&closure),
        [
            "common.tfvars",
            "lib/x/main.tf",
            "live/common.yaml",
            "live/prod/app/terragrunt.hcl",
            "live/prod/env.hcl",
            "live/prod/env.yaml",
            "live/prod/net/terragrunt.hcl",
            "live/root.hcl",
            "modules/app/main.tf",
            "modules/app/policy.json",
            // `//`: Terragrunt copies the folder before it.
            "modules/net/main.tf",
            "modules/unused/main.tf",
        ]
    );
}

#[rstest]
#[case::relative("\"../../../modules/net\"", Some("modules/net/main.tf"))]
#[case::root("\"${get_repo_root()}/modules/net\"", Some("modules/net/main.tf"))]
#[case::path_to_root(
    "\"${get_path_to_repo_root()}/modules/net\"",
    Some("modules/net/main.tf")
)]
#[case::own_folder(
    "\"${get_terragrunt_dir()}/../../../modules/net\"",
    Some("modules/net/main.tf")
)]
#[case::remote("\"git::https://git.test/x.git//net?ref=v1\"", None)]
#[case::registry("\"tfr:///terraform-aws-modules/vpc/aws?version=5.0.0\"", None)]
#[case::missing("\"../missing\"", None)]
#[case::outside("\"../../../../x\"", None)]
#[case::absolute("\"/modules/net\"", None)]
fn local_source_is_a_module(#[case] source: &str, #[case] expected: Option<&str>) {
    let unit = format!("terraform {{\n  source = {source}\n}}\n");
    let contents = [("live/prod/app/terragrunt.hcl", unit.as_str())];
    let closure = close_unit(&live(), &contents, "live/prod/app");
    assert_eq!(closure.whole, None);
    let own = "live/prod/app/terragrunt.hcl";
    let expected: Vec<_> = [own].into_iter().chain(expected).collect();
    assert_eq!(paths(&closure), expected);
}

#[rstest]
#[case::environment(
    "include \"r\" {\n  path = get_env(\"ROOT\")\n}\n",
    "live/prod/app/terragrunt.hcl:2"
)]
#[case::condition(
    "terraform {\n  source = true ? \"../a\" : \"../b\"\n}\n",
    "live/prod/app/terragrunt.hcl:2"
)]
#[case::command(
    "inputs = { a = run_cmd(\"./x\") }\n",
    "live/prod/app/terragrunt.hcl:1"
)]
#[case::fallback(
    "locals { a = file(find_in_parent_folders(\"x\", \"y\")) }\n",
    "live/prod/app/terragrunt.hcl:1"
)]
#[case::label_of_one_of_two_includes(
    "include \"root\" {\n  path = find_in_parent_folders(\"root.hcl\")\n}\ninclude \"env\" {\n  path = \"../env.hcl\"\n}\n\
     locals { a = file(\"${get_parent_terragrunt_dir(\"env\")}/env.yaml\") }\n",
    "live/prod/app/terragrunt.hcl:7"
)]
#[case::syntax("inputs = {\n", "live/prod/app/terragrunt.hcl:2")]
#[case::endless_local(
    "locals {\n  a = local.a\n  b = file(local.a)\n}\n",
    "live/prod/app/terragrunt.hcl:3"
)]
#[case::exploding_locals(
    "locals {\n  a = \"${local.b}${local.b}${local.b}\"\n  b = \"${local.c}${local.c}${local.c}\"\n  c = \"${local.d}${local.d}${local.d}\"\n  \
     d = \"${local.e}${local.e}${local.e}\"\n  e = \"${local.f}${local.f}${local.f}\"\n  f = \"${local.g}${local.g}${local.g}\"\n  \
     g = \"${local.h}${local.h}${local.h}\"\n  h = \"\"\n  x = file(local.a)\n}\n",
    "live/prod/app/terragrunt.hcl:10"
)]
fn path_that_is_not_known_includes_the_repository(#[case] unit: &str, #[case] place: &str) {
    let contents = [("live/prod/app/terragrunt.hcl", unit)];
    let closure = close_unit(&live(), &contents, "live/prod/app");
    let why = closure.whole.unwrap_or_default();
    assert!(why.starts_with(place), "{why}");
    assert_eq!(closure.entries.len(), live().count());
}

#[test]
fn cycle_of_dependencies_and_includes_terminates() {
    let include = "include \"r\" {\n  path = \"terragrunt.hcl\"\n}\n";
    let app = format!("{include}dependency \"net\" {{\n  config_path = \"../net\"\n}}\n");
    let contents = [
        ("live/prod/app/terragrunt.hcl", app.as_str()),
        (
            "live/prod/net/terragrunt.hcl",
            "dependencies {\n  paths = [\"../app\"]\n}\n",
        ),
    ];
    let closure = close_unit(&live(), &contents, "live/prod/app");
    let expected = [
        "live/prod/app/terragrunt.hcl",
        "live/prod/net/terragrunt.hcl",
    ];
    assert_eq!(paths(&closure), expected);
}

#[test]
fn number_of_configs_is_limited() {
    let names: Vec<_> = (0..=FILES)
        .map(|number| format!("u/{number}/terragrunt.hcl"))
        .collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let next = |number: usize| {
        let number = number + 1;
        format!("dependency \"n\" {{\n  config_path = \"../{number}\"\n}}\n")
    };
    let texts: Vec<_> = (0..=FILES).map(next).collect();
    let contents: Vec<_> = names
        .iter()
        .copied()
        .zip(texts.iter().map(String::as_str))
        .collect();
    let closure = close_unit(&tree(&names), &contents, "u/0");
    let why = closure.whole.unwrap_or_default();
    assert!(why.contains("too many configuration files"), "{why}");
}

#[test]
fn terragrunt_files_do_not_count_without_wrapper() {
    let unit = "include \"root\" {\n  path = find_in_parent_folders(\"root.hcl\")\n}\n";
    let contents = [("live/prod/app/terragrunt.hcl", unit)];
    let closure = close(&live(), &contents, "live/prod/app", &[]).unwrap();
    assert_eq!(paths(&closure), ["live/prod/app/terragrunt.hcl"]);
}
