//! `akri crds`: the CustomResourceDefinitions, for `kubectl apply`, or applied.

use std::process::ExitCode;

use akri_api::{Configuration, DiscoveryHandler, Instance};
use akri_cli::output::{print_text, with_causes};
use anyhow::Context as _;
use clap::Args;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, CustomResourceExt as _, ResourceExt as _};
use serde_json::{Value, json};

use crate::api_server::client;

/// The field manager that applies them.
const MANAGER: &str = "akri-crds";

/// Flags of `akri crds`.
#[derive(Debug, Args)]
pub(crate) struct CrdsArgs {
    /// Apply them to the cluster that KUBECONFIG or the pod's service account leads to, instead of printing them. Fields that
    /// somebody else has set are taken over.
    #[arg(long)]
    apply: bool,
}

/// Prints or applies them.
pub(crate) async fn run(args: CrdsArgs) -> anyhow::Result<ExitCode> {
    if args.apply {
        apply(client().await?).await?;
    } else {
        print_text(&documents()?)?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn apply(client: Client) -> anyhow::Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client);
    for definition in definitions() {
        let name = definition.name_any();
        let params = PatchParams::apply(MANAGER).force();
        let applied = api.patch(&name, &params, &Patch::Apply(value(&definition)?)).await;
        applied.map_err(with_causes).with_context(|| format!("cannot apply '{name}'"))?;
        print_text(&format!("{name} applied\n"))?;
    }
    Ok(())
}

fn definitions() -> [CustomResourceDefinition; 3] {
    [Configuration::crd(), Instance::crd(), DiscoveryHandler::crd()]
}

/// Returns one YAML document for each kind.
fn documents() -> anyhow::Result<String> {
    let document = |definition| anyhow::Ok(serde_saphyr::to_string(&value(definition)?)?);
    let documents = definitions().iter().map(document).collect::<anyhow::Result<Vec<_>>>();
    Ok(documents.context("cannot write a definition")?.join("---\n"))
}

fn value(definition: &CustomResourceDefinition) -> anyhow::Result<Value> {
    let mut definition = serde_json::to_value(definition)?;
    drop_empty_defaults(&mut definition);
    Ok(definition)
}

/// Removes empty defaults. The API server would write them into every object in the name of its creator: the nodes of
/// an Instance would belong to the creator, and none could leave (rule 23).
fn drop_empty_defaults(value: &mut Value) {
    let empty = [json!(null), json!(false), json!(0), json!(""), json!([]), json!({})];
    match value {
        Value::Object(fields) => {
            if fields.get("default").is_some_and(|default| empty.contains(default)) {
                fields.remove("default");
            }
            fields.values_mut().for_each(drop_empty_defaults);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_empty_defaults),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definitions in `deploy/`; after changing a kind run `make manifests`.
    const DEPLOYED: &str = include_str!("../../../deploy/crds.yaml");

    /// Keywords that Kubernetes 1.20 or 1.36 refuses, drops or warns about.
    const NOT_EVERYWHERE: [&str; 8] =
        ["$ref", "$defs", "anyOf", "const", "oneOf", "selectableFields", "x-kubernetes-validations", "examples"];

    /// Calls `visit` with each object and its path.
    fn walk(value: &Value, path: &str, visit: &mut impl FnMut(&str, &serde_json::Map<String, Value>)) {
        match value {
            Value::Object(object) => {
                visit(path, object);
                object.iter().for_each(|(key, value)| walk(value, &format!("{path}/{key}"), visit));
            }
            Value::Array(items) => items.iter().for_each(|item| walk(item, path, visit)),
            _ => {}
        }
    }

    fn schemas() -> Vec<Value> {
        let documents = documents().unwrap();
        let definitions: Vec<Value> = serde_saphyr::from_multiple(&documents).unwrap();
        assert_eq!(definitions.len(), 3);
        definitions.iter().map(|definition| definition["spec"]["versions"][0]["schema"].clone()).collect()
    }

    #[test]
    fn deployed_crds_are_those_of_this_program() {
        assert_eq!(documents().unwrap(), DEPLOYED, "run 'make manifests'");
    }

    #[test] // rule 33
    fn old_and_new_api_servers_accept_the_crds() {
        for schema in schemas() {
            walk(&schema, "", &mut |path, object| {
                for word in NOT_EVERYWHERE {
                    assert!(!object.contains_key(word), "{path} has {word}");
                }
                let format = object.get("format").and_then(Value::as_str).unwrap_or("int64");
                assert!(["int32", "int64", "date-time"].contains(&format), "{path} has the format {format}");
            });
        }
    }

    #[test]
    fn every_field_has_a_type_and_a_description() {
        for schema in schemas() {
            walk(&schema, "", &mut |path, object| {
                let fields = object.get("properties").filter(|_| object.get("type") == Some(&"object".into()));
                for (name, field) in fields.and_then(Value::as_object).into_iter().flatten() {
                    let any = field.get("x-kubernetes-int-or-string").is_some();
                    assert!(any || field.get("type").is_some(), "{path}/{name} has no type");
                    assert!(field.get("description").is_some(), "{path}/{name} has no description");
                }
            });
        }
    }

    #[test]
    fn conditions_and_sets_are_merged_by_key() {
        let documents = documents().unwrap();
        assert_eq!(documents.matches("x-kubernetes-list-type: map").count(), 4, "conditions, and properties by name");
        assert_eq!(documents.matches("x-kubernetes-list-type: set").count(), 1, "the nodes of an Instance");
        assert_eq!(documents.matches("x-kubernetes-map-type: granular").count(), 1, "the slots of an Instance");
    }
}
