//! The chart without a cluster: what helm makes of good values and of bad ones, and that `deploy/` is made from it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use akri_api::manifest::typed;
use akri_api::validate::FieldError;
use akri_api::{Configuration, DiscoveryHandler, validate};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::support::cluster::{helm, program, render};

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

fn read(file: &str) -> String {
    fs::read_to_string(deploy().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn documents(yaml: &str) -> Vec<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
    documents.into_iter().filter(|document| !document.is_null()).collect()
}

fn find<'a>(documents: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let is_it = |document: &&Value| document["kind"] == kind && document["metadata"]["name"] == name;
    documents.iter().find(is_it).unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// Renders with values as a file of them, which is what upgrades use.
fn with_values(values: &str) -> Option<Result<Vec<Value>, String>> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), values).unwrap();
    let output = helm(&["--values", file.path().to_str().unwrap()])?;
    Some(match output.status.success() {
        true => Ok(documents(&String::from_utf8(output.stdout).unwrap())),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    })
}

#[test] // rule 66
fn manifests_are_made_from_chart_handlers_and_program() {
    assert!(read("helm/akri/crds/crds.yaml") == read("crds.yaml"), "run 'make manifests'");
    for handler in ["debug-echo", "mdns", "onvif", "opcua", "udev"] {
        let built_in = deploy().join("../handlers").join(handler).join("handler.yaml");
        let copy = read(&format!("helm/akri/files/handlers/{handler}.yaml"));
        assert!(copy == fs::read_to_string(built_in).unwrap(), "{handler}: run 'make manifests'");
    }
    let chart: Value = serde_saphyr::from_str(&read("helm/akri/Chart.yaml")).unwrap();
    assert_eq!(
        (&chart["version"], &chart["appVersion"]),
        (&env!("CARGO_PKG_VERSION").into(), &env!("CARGO_PKG_VERSION").into())
    );
    let plain = ["createNamespace=true", "podDisruptionBudget.enabled=false", "crds.upgrade=false"];
    let plain =
        plain.iter().flat_map(|value| ["--set", *value]).chain(["--kube-version", "1.20.0"]).collect::<Vec<_>>();
    let handlers = "policy.enabled=false,udev.discovery.enabled=false,onvif.discovery.enabled=false,\
                    opcua.discovery.enabled=false,mdns.discovery.enabled=false,debugEcho.discovery.enabled=false";
    let policy = ["--set", "policy.enabled=true", "--show-only", "templates/policy.yaml"];
    for (file, arguments) in [("akri.yaml", &["--set", handlers][..]), ("policy.yaml", &policy)] {
        let Some(output) = helm(&[&plain[..], arguments].concat()) else { return };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8(output.stdout).unwrap() == read(file), "{file} is old: run 'make manifests'");
    }
}

#[test] // rule 63
fn webhook_has_the_callers_and_certificates_of_its_values() {
    let values = |servers: &str, more: &str| {
        format!("webhookConfiguration: {{enabled: true{more}}}\nnetworkPolicy: {{apiServers: [{servers}]}}\n")
    };
    let Some(open) = with_values(&values("", "")) else { return };
    let from = |objects: &[Value]| find(objects, "NetworkPolicy", "akri-webhook")["spec"]["ingress"][0]["from"].clone();
    assert_eq!(from(&open.unwrap()), Value::Null);
    let of_cert_manager = values("10.0.0.1/32", ", certificate: {certManager: {enabled: true}}");
    let rendered = with_values(&of_cert_manager).unwrap().unwrap();
    assert_eq!(from(&rendered), json!([{"ipBlock": {"cidr": "10.0.0.1/32"}}]));
    let spec = &find(&rendered, "Certificate", "akri-webhook")["spec"];
    assert_eq!(spec["dnsNames"][0], "akri-webhook.akri-system.svc");
    find(&rendered, "Issuer", "akri-webhook");
    let webhook = find(&rendered, "ValidatingWebhookConfiguration", "akri-webhook");
    assert_eq!(webhook["metadata"]["annotations"]["cert-manager.io/inject-ca-from"], "akri-system/akri-webhook");
    let arguments =
        find(&rendered, "Deployment", "akri-webhook")["spec"]["template"]["spec"]["containers"][0]["args"].clone();
    let arguments: Vec<String> = serde_json::from_value(arguments).unwrap();
    assert!(arguments.contains(&"--tls-crt-file=/etc/akri/tls/tls.crt".to_owned()), "{arguments:?}");
    assert!(!rendered.iter().any(|object| object["kind"] == "Secret"));
}

/// As upstream's users have them: each of its handlers on, with a broker.
const UPSTREAM: &str = r#"
useLatestContainers: false
agent:
  host: {containerRuntimeSock: /run/containerd/containerd.sock}
  resources: {memoryRequest: 11Mi, cpuRequest: 10m, memoryLimit: 79Mi, cpuLimit: 26m}
  tolerations: {}
  allowDebugEcho: true
controller: {onlyOnControlPlane: true, nodeSelectors: {disk: ssd}}
debugEcho:
  discovery: {enabled: true, image: {repository: handlers/echo}}
  configuration: {enabled: true, shared: false, brokerPod: {image: {repository: nginx}}}
udev:
  discovery: {enabled: true, host: {udev: /run/udev}}
  configuration:
    enabled: true
    discoveryDetails: {udevRules: ['KERNEL=="video[0-9]*"']}
    brokerPod: {image: {repository: nginx, tag: stable}, resources: {memoryLimit: 64Mi}}
opcua:
  discovery: {enabled: true}
  configuration: {enabled: true, mountCertificates: true, brokerPod: {image: {repository: nginx}}}
onvif:
  discovery: {enabled: true}
  configuration: {enabled: true, brokerJob: {image: {repository: busybox}, command: [sh, -c, "true"]}}
custom:
  discovery: {enabled: true, image: {repository: nginx}}
  configuration: {enabled: true, discoveryHandlerName: some name, brokerPod: {image: {repository: nginx}}}
webhookConfiguration:
  enabled: true
  ttlSecondsAfterFinished: 10
  onlyOnControlPlane: true
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: Exists}]}]}}}
prometheus: {enabled: true, port: 8080, endpoint: /metrics, portName: metrics}
"#;

#[test] // rule 65
fn values_of_upstream_akri_keep_their_meaning() {
    let Some(rendered) = with_values(UPSTREAM) else { return };
    let rendered = rendered.unwrap();
    let configurations: Vec<&Value> = rendered.iter().filter(|object| object["kind"] == "Configuration").collect();
    assert_eq!(configurations.len(), 5);
    for object in &configurations {
        let typed: Configuration = serde_json::from_value((*object).clone()).unwrap();
        assert_eq!(validate::configuration(&typed), [], "{object:#}");
    }
    let udev = &find(&rendered, "Configuration", "akri-udev")["spec"];
    let container = &udev["brokerSpec"]["brokerPodSpec"]["containers"][0];
    assert_eq!(container["image"], "nginx:stable");
    assert_eq!(container["resources"]["limits"], json!({"{{PLACEHOLDER}}": "1", "memory": "64Mi", "cpu": "29m"}));
    assert_eq!(container["resources"]["requests"], json!({"{{PLACEHOLDER}}": "1", "memory": "10Mi", "cpu": "10m"}));
    assert_eq!(udev["instanceServiceSpec"]["ports"][0]["targetPort"], 8083);
    let details: Value =
        serde_saphyr::from_str(udev["discoveryHandler"]["discoveryDetails"].as_str().unwrap()).unwrap();
    assert_eq!(details["udevRules"][0], "KERNEL==\"video[0-9]*\"");
    let opcua = &find(&rendered, "Configuration", "akri-opcua")["spec"];
    assert_eq!(opcua["brokerSpec"]["brokerPodSpec"]["volumes"][0]["secret"]["secretName"], "opcua-broker-credentials");
    let details: Value =
        serde_saphyr::from_str(opcua["discoveryHandler"]["discoveryDetails"].as_str().unwrap()).unwrap();
    assert_eq!(details["opcuaDiscoveryMethod"]["standard"]["discoveryUrls"][0], "opc.tcp://localhost:4840/");
    let onvif = &find(&rendered, "Configuration", "akri-onvif")["spec"]["brokerSpec"]["brokerJobSpec"];
    assert_eq!(onvif["template"]["spec"]["containers"][0]["command"][0], "sh");
    let agent = &find(&rendered, "DaemonSet", "akri-agent")["spec"]["template"]["spec"];
    assert_eq!(agent["containers"][0]["resources"]["limits"], json!({"memory": "79Mi", "cpu": "26m"}));
    let zone = json!({"key": "zone", "operator": "Exists"});
    for (name, own) in [("akri-controller", None), ("akri-webhook", Some(zone))] {
        let affinity = &find(&rendered, "Deployment", name)["spec"]["template"]["spec"]["affinity"]["nodeAffinity"];
        let terms = ["control-plane", "master"].map(|role| {
            let role = json!({"key": format!("node-role.kubernetes.io/{role}"), "operator": "Exists"});
            json!({"matchExpressions": own.iter().cloned().chain([role]).collect::<Vec<_>>()})
        });
        assert_eq!(affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"], json!(terms));
    }
    find(&rendered, "DaemonSet", "akri-custom-discovery");
    let monitor = find(&rendered, "PodMonitor", "akri-agent");
    assert_eq!(monitor["spec"]["podMetricsEndpoints"][0]["honorLabels"], true, "the label `namespace` is ours");
    {
        let Some(rendered) = with_values(OTHERS_OF_UPSTREAM) else { return };
        let rendered = rendered.unwrap();
        let (pod, job) = ("/spec/brokerSpec/brokerPodSpec", "/spec/brokerSpec/brokerJobSpec/template/spec");
        let certificates = json!([
            {"key": "ca_certificate", "path": "trusted/certs/SomeCA.der"},
            {"key": "ca_crl", "path": "trusted/crl/SomeCA.crl"},
            {"key": "client_certificate", "path": "own/certs/AkriBroker.der"},
            {"key": "client_key", "path": "own/private/AkriBroker.pfx"},
        ]);
        let environment = json!([
            {"secretRef": {"name": "login"}}, {"configMapRef": {"name": "frames"}}, {"configMapRef": {"name": "colours"}},
        ]);
        let mounts = json!([
            {"name": "data", "mountPath": "/data"},
            {"name": "credentials", "mountPath": "/etc/opcua-certs/client-pki", "readOnly": false},
        ]);
        let volumes = json!([
            {"name": "data", "emptyDir": {}},
            {"name": "credentials", "secret": {"secretName": "opcua-broker-credentials", "items": certificates}},
        ]);
        for (name, pointer, expected) in [
            (
                "akri-udev",
                "/spec/brokerProperties".to_owned(),
                json!({
                    "RESOLUTION_WIDTH": "1000", "IS_BIG": "true", "NAMESPACE_INDEX": "2", "PIXELS": "12345678", "SCALE": "1.5",
                }),
            ),
            (
                "akri-udev",
                format!("{pod}/containers/0/env"),
                json!([{"name": "FORMAT", "value": "YUYV"}, {"name": "RATE", "value": "10000000"}]),
            ),
            ("akri-udev", format!("{pod}/containers/0/envFrom"), environment),
            ("akri-udev", "/spec/instanceServiceSpec/ports/0/name".to_owned(), json!("grpc")),
            ("akri-onvif", format!("{job}/containers/0/env"), json!([{"name": "A", "value": "b"}])),
            ("akri-onvif", "/spec/instanceServiceSpec".to_owned(), Value::Null),
            ("akri-opcua", format!("{pod}/volumes"), volumes),
            ("akri-opcua", format!("{pod}/containers/0/volumeMounts"), mounts),
            ("akri-debug-echo", "/spec/instanceServiceSpec/ports/0/name".to_owned(), json!("echo-port")),
            ("akri-debug-echo", "/spec/configurationServiceSpec".to_owned(), Value::Null),
            ("akri-custom", "/spec/instanceServiceSpec/ports/0/name".to_owned(), json!("akri-custom-instance-service")),
            ("akri-debug-echo", format!("{pod}/containers/0/image"), json!("nginx:latest")),
        ] {
            let found = find(&rendered, "Configuration", name).pointer(&pointer).cloned().unwrap_or_default();
            assert_eq!(found, expected, "{name} {pointer}");
        }
        assert_eq!(find(&rendered, "DiscoveryHandler", "debug-echo")["spec"]["shared"], false);
        assert_eq!(
            find(&rendered, "DaemonSet", "akri-agent")["spec"]["template"]["spec"]["volumes"][5]["hostPath"]["path"],
            "/run/udev"
        );
        assert_eq!(find(&rendered, "PodMonitor", "akri-agent")["metadata"]["labels"]["release"], "prometheus");
        // A certificate of somebody else is for the name that upstream's webhook has, as is the Secret with it.
        find(&rendered, "Service", "akri-webhook-configuration");
        let registration = find(&rendered, "ValidatingWebhookConfiguration", "akri-webhook-configuration");
        assert_eq!(registration["webhooks"][0]["clientConfig"]["service"]["name"], "akri-webhook-configuration");
        let webhook = &find(&rendered, "Deployment", "akri-webhook")["spec"]["template"]["spec"];
        let is_certificate = |volume: &&Value| volume["secret"]["secretName"] == "akri-webhook-configuration";
        assert!(webhook["volumes"].as_array().unwrap().iter().any(|volume| is_certificate(&volume)), "{webhook:#}");
    }
}

/// Further values of upstream's chart, as its documentation and `helm show values` have them: quoted and unquoted numbers, empty
/// values, and such as mean nothing here.
const OTHERS_OF_UPSTREAM: &str = r#"
kubernetesDistro: k3s
nameOverride: devices
fullnameOverride: null
cleanupHook: {enabled: true}
crds: {group: akri.sh, version: v0}
agent:
  full: true
  host: {udev: null, containerRuntimeSocket: /run/containerd/containerd.sock}
  image: {tag: null, pullPolicy: ""}
controller: {tolerations: {}, nodeSelectors: {}, image: {tag: null, pullPolicy: Always}}
debugEcho:
  configuration:
    enabled: true
    shared: false
    brokerPod: {image: {repository: nginx, tag: null}}
    instanceService: {name: echo-port}
    createConfigurationService: false
custom: {configuration: {enabled: true, discoveryHandlerName: any, brokerPod: {image: {repository: nginx}}}}
udev:
  configuration:
    enabled: true
    brokerProperties: {RESOLUTION_WIDTH: 1000, IS_BIG: true, NAMESPACE_INDEX: "2", PIXELS: 12345678, SCALE: 1.5}
    brokerPod:
      image: {repository: nginx}
      env: {FORMAT: YUYV, RATE: 10000000}
      envFrom: {secretRef: [login], configMapRef: [frames, colours]}
    instanceService: {name: not-a-port}
onvif:
  configuration:
    enabled: true
    brokerJob: {image: {repository: busybox}, command: null, env: {A: b}, envFrom: {secretRef: [login]}}
    discoveryProperties: null
opcua:
  configuration:
    enabled: true
    mountCertificates: true
    brokerPod:
      image: {repository: nginx}
      volumes: [{name: data, emptyDir: {}}]
      volumeMounts: [{name: data, mountPath: /data}]
mdns: {configuration: {discoveryProperties: null, brokerPod: {image: {repository: null}}}}
webhookConfiguration: {caBundle: certificate.crt}
prometheus: {enabled: true, endpoint: /metrics}
"#;

#[test] // rule 65
fn notes_warn_of_limits_that_end_the_agent() {
    let Some(helm) = program("helm") else { return };
    let notes = |limits: &str| {
        let mut command = Command::new(&helm);
        command.args(["install", "akri", "--dry-run=client", "--set", limits]).arg(deploy().join("helm/akri"));
        let output = command.output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        printed.split("\nNOTES:\n").nth(1).unwrap_or_else(|| panic!("{output:?}")).to_owned()
    };
    for (limits, warning) in [
        ("agent.resources.memoryLimit=79Mi", "memory limit is 79Mi"),
        ("agent.resources.limits.memory=511Mi", "memory limit is 511Mi"),
        ("agent.resources.cpuLimit=26m", "CPU limit is 26m"),
    ] {
        assert!(notes(limits).contains(warning), "{limits}");
    }
    for limits in [
        "agent.port=9464",
        "agent.resources.memoryLimit=512Mi",
        "agent.resources.memoryLimit=1Gi",
        "agent.resources.cpuLimit=1",
    ] {
        assert!(!notes(limits).contains("limit is"), "{limits}");
    }
}

#[test] // rule 65
fn release_of_configurations_alone_has_nothing_else() {
    let off = "agent: {enabled: false}\ncontroller: {enabled: false}\nrbac: {enabled: false}\nwebhookConfiguration: {enabled: false}\n";
    let Some(rendered) = with_values(&format!("{off}udev: {{configuration: {{enabled: true, name: scales}}}}")) else {
        return;
    };
    let rendered = rendered.unwrap();
    assert_eq!(rendered.len(), 1, "{rendered:#?}");
    find(&rendered, "Configuration", "scales");
}

#[test] // rule 66
fn unknown_and_invalid_values_are_refused_by_name() {
    for (values, named) in [
        ("agnet: {enabled: false}", "agnet"),
        ("udev: {configuration: {enabeld: true}}", "enabeld"),
        ("udev: {configuration: {capacity: 0}}", "/udev/configuration/capacity"),
        (
            "udev: {configuration: {discoveryDetails: {permissions: wr}}}",
            "/udev/configuration/discoveryDetails/permissions",
        ),
        ("webhookConfiguration: {failurePolicy: Maybe}", "/webhookConfiguration/failurePolicy"),
        ("agent: {enabled: \"yes\"}", "/agent/enabled"),
        ("image: {digest: latest}", "/image/digest"),
        ("custom: {configuration: {enabled: true}}", "custom.configuration.discoveryHandlerName"),
        ("custom: {discovery: {enabled: true}}", "custom.discovery.image.repository"),
        // Values of upstream Akri that would mean something else: the error says what to write instead.
        ("agent: {image: {repository: ghcr.io/project-akri/akri/agent}}", "set image.repository"),
        ("controller: {image: {repository: ghcr.io/project-akri/akri/controller}}", "set image.repository"),
        ("agent: {image: {repository: registry.example/akri/agent}}", "set image.repository"),
        ("agent: {image: {tag: v0.13.26-amd64}}", "image.tag is that of the one image"),
        ("webhookConfiguration: {image: {tag: latest-dev}}", "image.tag is that of the one image"),
        ("udev: {discovery: {nodeSelectors: {usb: \"true\"}}}", "agent.nodeSelectors"),
        ("udev: {enabled: true}", "write udev.configuration.enabled"),
        ("opcua: {capacity: 2}", "write opcua.configuration.capacity"),
        ("custom: {brokerPod: {image: {repository: a}}}", "write custom.configuration.brokerPod"),
        ("onvif: {instanceService: {type: NodePort}}", "write onvif.configuration.instanceService"),
        ("udev: {udevRules: [a]}", "write udev.configuration.discoveryDetails.udevRules"),
        ("udev: {colour: red}", "udev has the values discovery and configuration"),
        ("custom: {colour: red}", "custom has the values discovery and configuration"),
        ("webhookConfiguration: {caBundle: x, certificate: {certManager: {enabled: true}}}", "leave it out"),
        ("prometheus: {endpoint: /akri}", "metrics are at /metrics"),
        (
            "custom: {discovery: {enabled: true, image: {repository: a}, useNetworkConnection: true}}",
            "--allow-network-handlers=CIDR",
        ),
        ("onvif: {configuration: {discoveryDetails: {discoveryTimeoutSeconds: 60}}}", "/discoveryTimeoutSeconds"),
        ("crds: {group: example.com}", "/crds/group"),
    ] {
        let Some(rendered) = with_values(values) else { return };
        let error = rendered.unwrap_err();
        assert!(error.contains(named), "{values}: {error}");
    }
}

/// The fields of an object that its kind does not have, in the Kubernetes that the libraries are of.
fn unknown_fields(object: &Value) -> Option<Vec<FieldError>> {
    fn of<T: DeserializeOwned>(object: &Value) -> Option<Vec<FieldError>> {
        Some(typed::<T>(object).err().unwrap_or_default())
    }
    match object["kind"].as_str().unwrap() {
        "ClusterRole" => of::<ClusterRole>(object),
        "ClusterRoleBinding" => of::<ClusterRoleBinding>(object),
        "ConfigMap" => of::<ConfigMap>(object),
        "Configuration" => of::<Configuration>(object),
        "DaemonSet" => of::<DaemonSet>(object),
        "Deployment" => of::<Deployment>(object),
        "DiscoveryHandler" => of::<DiscoveryHandler>(object),
        "Job" => of::<Job>(object),
        "Namespace" => of::<Namespace>(object),
        "NetworkPolicy" => of::<NetworkPolicy>(object),
        "PodDisruptionBudget" => of::<PodDisruptionBudget>(object),
        "Role" => of::<Role>(object),
        "RoleBinding" => of::<RoleBinding>(object),
        "Secret" => of::<Secret>(object),
        "Service" => of::<Service>(object),
        "ServiceAccount" => of::<ServiceAccount>(object),
        "ValidatingAdmissionPolicy" => of::<ValidatingAdmissionPolicy>(object),
        "ValidatingAdmissionPolicyBinding" => of::<ValidatingAdmissionPolicyBinding>(object),
        "ValidatingWebhookConfiguration" => of::<ValidatingWebhookConfiguration>(object),
        _ => None,
    }
}

#[test]
fn rendered_fields_are_known_to_kubernetes() {
    let everything = format!(
        "{UPSTREAM}\ncreateNamespace: true\ncontroller: {{replicas: 2}}\nprometheus: {{enabled: true, rules: {{enabled: true}}, \
         dashboard: {{enabled: true}}}}"
    );
    let everything = everything.replacen("controller: {onlyOnControlPlane: true, nodeSelectors: {disk: ssd}}\n", "", 1);
    let everything =
        everything.replacen("prometheus: {enabled: true, port: 8080, endpoint: /metrics, portName: metrics}\n", "", 1);
    let Some(rendered) = with_values(&everything) else { return };
    let mut others = BTreeSet::new();
    for object in rendered.unwrap() {
        match unknown_fields(&object) {
            Some(errors) => assert_eq!(errors, [], "{} {}", object["kind"], object["metadata"]["name"]),
            None => drop(others.insert(object["kind"].as_str().unwrap().to_owned())),
        }
    }
    assert_eq!(others, BTreeSet::from(["PodMonitor".to_owned(), "PrometheusRule".to_owned()]));
}

#[test]
fn values_replace_the_image_and_grants_of_the_chart() {
    let digest = format!("sha256:{}", "ab".repeat(32));
    let values = format!(
        "image: {{repository: registry.example/akri, digest: \"{digest}\"}}\n\
         udev: {{discovery: {{grants: {{udev: {{subsystems: [tty]}}, devicePaths: [/dev/ttyUSB0]}}, interval: 30s}}}}\n\
         onvif: {{discovery: {{enabled: false}}}}\n\
         controller: {{securityContext: {{runAsUser: 0, runAsNonRoot: false}}, podAnnotations: {{scrape: true}}}}\n"
    );
    let Some(rendered) = with_values(&values) else { return };
    let rendered = rendered.unwrap();
    for (kind, name) in [
        ("DaemonSet", "akri-agent"),
        ("Deployment", "akri-controller"),
        ("Deployment", "akri-webhook"),
        ("Job", "akri-crds"),
    ] {
        let container = &find(&rendered, kind, name)["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(
            container["image"],
            format!("registry.example/akri:{}@{digest}", env!("CARGO_PKG_VERSION")),
            "{name}"
        );
    }
    let controller = &find(&rendered, "Deployment", "akri-controller")["spec"]["template"];
    assert_eq!(controller["metadata"]["annotations"], json!({"scrape": "true"}));
    let context = &controller["spec"]["containers"][0]["securityContext"];
    assert_eq!(
        [&context["runAsUser"], &context["runAsNonRoot"], &context["readOnlyRootFilesystem"]],
        [&json!(0), &json!(false), &json!(true)]
    );
    // The hook is helm's alone: kubectl would run it as a part of the installation.
    let hook = find(&rendered, "Job", "akri-crds");
    assert_eq!(hook["metadata"]["annotations"]["helm.sh/hook"], "pre-upgrade");
    assert_eq!(hook["spec"]["template"]["spec"]["containers"][0]["args"], json!(["crds", "--apply"]));

    let handler = |name: &str| -> DiscoveryHandler {
        serde_json::from_value(find(&rendered, "DiscoveryHandler", name).clone()).unwrap()
    };
    assert_eq!(handler("udev").spec.grants.udev.unwrap().subsystems, ["tty"]);
    assert_eq!(handler("udev").spec.interval.as_deref(), Some("30s"));
    let built_in: DiscoveryHandler = serde_saphyr::from_str(&read("helm/akri/files/handlers/opcua.yaml")).unwrap();
    assert_eq!(handler("opcua").spec, built_in.spec);
    assert!(
        !rendered.iter().any(|object| object["kind"] == "DiscoveryHandler" && object["metadata"]["name"] == "onvif")
    );
}

/// Nothing rewrites them, so that they have to be right from the start.
#[test] // rule 120
fn failure_policies_stand_as_they_stay() {
    let policies = |values: &str| -> Option<[String; 2]> {
        let rendered = with_values(values)?.unwrap();
        let webhooks = find(&rendered, "ValidatingWebhookConfiguration", "akri-webhook")["webhooks"].clone();
        let conditions = webhooks[0]["matchConditions"][0]["expression"].as_str().unwrap();
        assert_eq!(conditions, "request.operation != 'UPDATE' || object.spec != oldObject.spec");
        let policy = |index: usize| webhooks[index]["failurePolicy"].as_str().unwrap().to_owned();
        assert_eq!(
            [&webhooks[0]["name"], &webhooks[1]["name"]],
            ["configurations.akri.sh", "discoveryhandlers.akri.sh"]
        );
        Some([policy(0), policy(1)])
    };
    let Some(alone) = policies("") else { return };
    assert_eq!(alone, ["Fail", "Ignore"]);
    let with_configuration = "udev: {configuration: {enabled: true}}\n";
    assert_eq!(policies(with_configuration).unwrap(), ["Ignore", "Ignore"]);
    let explicit = format!("{with_configuration}webhookConfiguration: {{failurePolicy: Fail}}");
    assert_eq!(policies(&explicit).unwrap(), ["Fail", "Ignore"]);
    // Where a release of upstream becomes one of this chart there is no webhook yet either.
    let output = helm(&["--is-upgrade", "--set", "udev.configuration.enabled=true"]).unwrap();
    let upgraded = documents(&String::from_utf8(output.stdout).unwrap());
    let webhook = &find(&upgraded, "ValidatingWebhookConfiguration", "akri-webhook")["webhooks"][0];
    assert_eq!(webhook["failurePolicy"], "Ignore");
    let Some(old) = render(&["webhookConfiguration.failurePolicy=Ignore"]) else { return };
    let old = documents(&old);
    let webhook = &find(&old, "ValidatingWebhookConfiguration", "akri-webhook")["webhooks"][0];
    assert_eq!(webhook["failurePolicy"], "Ignore");
}

#[test] // rule 120
fn agent_is_admitted_to_every_node_by_default() {
    let tolerations = |values: &str| {
        let rendered = with_values(values)?.unwrap();
        Some(find(&rendered, "DaemonSet", "akri-agent")["spec"]["template"]["spec"]["tolerations"].clone())
    };
    let Some(default) = tolerations("") else { return };
    assert_eq!(default, json!([{"operator": "Exists"}]), "a taint that evicts it would leave pods with devices");
    assert_eq!(tolerations("agent: {tolerations: []}").unwrap(), Value::Null);
    let rendered = with_values("createNamespace: true").unwrap().unwrap();
    let labels = &find(&rendered, "Namespace", "akri-system")["metadata"]["labels"];
    assert_eq!(labels["pod-security.kubernetes.io/enforce"], "privileged");
}

#[test] // rule 66
fn cleanup_empties_the_directories_of_the_agent() {
    let objects = documents(&read("cleanup.yaml"));
    for object in &objects {
        assert_eq!(unknown_fields(object), Some(Vec::new()), "{object:#}");
    }
    let cleanup = find(&objects, "DaemonSet", "akri-cleanup");
    let account = &cleanup["spec"]["template"]["spec"]["serviceAccountName"];
    assert_eq!(*account, find(&objects, "RoleBinding", "akri-cleanup")["subjects"][0]["name"], "OpenShift asks for it");
    let pod = &cleanup["spec"]["template"]["spec"];
    let paths = pod["volumes"].as_array().unwrap().iter().map(|volume| volume["hostPath"]["path"].clone());
    let values: Value = serde_saphyr::from_str(&read("helm/akri/values.yaml")).unwrap();
    let host = &values["agent"]["host"];
    let expected = [host["discoveryHandlers"].clone(), host["state"].clone(), "/var/run/cdi".into()];
    assert_eq!(paths.collect::<Vec<_>>(), expected);
    for container in pod["initContainers"].as_array().unwrap() {
        assert_eq!(
            container["image"].as_str().unwrap().split('/').next(),
            Some("docker.io"),
            "CRI-O asks for the registry"
        );
        let mounts = container["volumeMounts"].as_array().unwrap();
        let emptied = container["command"].as_array().unwrap();
        assert!(mounts.iter().all(|mount| emptied.contains(&mount["mountPath"])), "{pod:#}");
    }
}

#[test]
fn objects_are_those_that_the_cluster_serves() {
    let of_version = |version: &str| -> Option<Vec<Value>> {
        let output = helm(&["--kube-version", version, "--set", "policy.enabled=auto,controller.replicas=2"])?;
        Some(documents(&String::from_utf8(output.stdout).unwrap()))
    };
    let (Some(old), Some(new)) = (of_version("1.20.0"), of_version("1.36.0")) else { return };
    assert_eq!(find(&old, "PodDisruptionBudget", "akri-controller")["apiVersion"], "policy/v1beta1");
    assert_eq!(find(&new, "PodDisruptionBudget", "akri-controller")["apiVersion"], "policy/v1");
    assert!(!old.iter().any(|object| object["kind"] == "ValidatingAdmissionPolicy"));
    assert!(new.iter().any(|object| object["kind"] == "ValidatingAdmissionPolicy"));
    openshift_gets_what_its_admission_asks_for();
}

/// Constraints and bindings are made where the API of OpenShift is served, and only there.
fn openshift_gets_what_its_admission_asks_for() {
    let Some(elsewhere) = with_values("") else { return };
    let is_constraint = |object: &Value| object["kind"] == "SecurityContextConstraints";
    assert!(!elsewhere.unwrap().iter().any(is_constraint));
    let custom = ["--set", "custom.discovery.enabled=true,custom.discovery.image.repository=registry.example/mine"];
    let output = helm(&[&["--api-versions", "security.openshift.io/v1"], &custom[..]].concat()).unwrap();
    let rendered = documents(&String::from_utf8(output.stdout).unwrap());
    let constraints = find(&rendered, "SecurityContextConstraints", "akri-agent");
    assert_eq!(constraints["users"][0], "system:serviceaccount:akri-system:akri-agent");
    let agent = &find(&rendered, "DaemonSet", "akri-agent")["spec"]["template"]["spec"];
    assert_eq!(agent["hostNetwork"], constraints["allowHostNetwork"]);
    assert_eq!(
        agent["containers"][0]["securityContext"]["capabilities"]["drop"],
        constraints["requiredDropCapabilities"]
    );
    let mut volumes = agent["volumes"].as_array().unwrap().iter();
    assert!(volumes.all(|volume| volume["hostPath"].is_object()), "{agent:#}");
    for (kind, account) in [("Deployment", "akri-controller"), ("Deployment", "akri-webhook"), ("Job", "akri-crds")] {
        let binding = find(&rendered, "RoleBinding", &format!("{account}-nonroot"));
        assert_eq!(binding["subjects"][0]["name"], account);
        let workload = find(&rendered, kind, account);
        assert_eq!(workload["spec"]["template"]["spec"]["serviceAccountName"], account);
        // The job runs before anything else of the release is changed.
        assert_eq!(
            binding["metadata"]["annotations"]["helm.sh/hook"],
            workload["metadata"]["annotations"]["helm.sh/hook"]
        );
    }
    let custom = &find(&rendered, "DaemonSet", "akri-custom-discovery")["spec"]["template"]["spec"];
    let account = format!("system:serviceaccount:akri-system:{}", custom["serviceAccountName"].as_str().unwrap());
    assert_eq!(find(&rendered, "SecurityContextConstraints", "akri-custom-discovery")["users"][0], account);
    let mut volumes = custom["volumes"].as_array().unwrap().iter();
    assert!(volumes.all(|volume| volume["hostPath"].is_object()), "{custom:#}");
}
