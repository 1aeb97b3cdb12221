use super::*;

const CAM: &str = "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {name: cam}\n\
    spec: {discoveryHandler: {name: udev}}\n";

fn reader(directory: &Path) -> Reader {
    Reader::new(vec![directory.to_owned()], &directory.join("state"))
}

fn names(manifests: &Manifests) -> Vec<String> {
    manifests.configurations.keys().map(ToString::to_string).collect()
}

#[test] // rule 26
fn broken_file_keeps_its_objects_and_removed_file_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let (cam, other) = (directory.path().join("cam.yaml"), directory.path().join("other.yaml"));
    fs::write(&cam, CAM).unwrap();
    fs::write(&other, CAM.replace("cam", "other")).unwrap();
    let mut reader = reader(directory.path());
    assert_eq!(names(&reader.read().manifests), ["default/cam", "default/other"]);
    fs::write(&cam, "spec: [").unwrap();
    let broken = reader.read().manifests;
    assert_eq!((names(&broken).len(), broken.complete), (2, false));
    fs::write(&cam, CAM.replace("{name: udev}", "{nam: udev}")).unwrap();
    assert_eq!(names(&reader.read().manifests).len(), 2);
    fs::remove_file(&cam).unwrap();
    let removed = reader.read().manifests;
    assert_eq!((names(&removed), removed.complete), (vec!["default/other".to_owned()], true));
}

#[test]
fn vanished_directory_deletes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let manifests = directory.path().join("manifests");
    fs::create_dir(&manifests).unwrap();
    fs::write(manifests.join("cam.yaml"), CAM).unwrap();
    let mut reader = Reader::new(vec![manifests.clone()], directory.path());
    reader.read();
    fs::rename(&manifests, directory.path().join("elsewhere")).unwrap();
    let removed_items = reader.read().manifests;
    assert_eq!((names(&removed_items).len(), removed_items.complete), (1, false));
}

#[test] // rule 44
fn another_directory_that_is_empty_deletes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let (manifests, state) = (root.path().join("manifests"), root.path().join("state"));
    let read = |reader: &mut Reader| {
        let read = reader.read().manifests;
        (names(&read).len(), read.complete)
    };
    fs::create_dir(&manifests).unwrap();
    fs::write(manifests.join("cam.yaml"), CAM).unwrap();
    let mut first = Reader::new(vec![manifests.clone()], &state);
    assert_eq!(read(&mut first), (1, true));
    fs::rename(&manifests, root.path().join("volume")).unwrap();
    fs::create_dir(&manifests).unwrap();
    for reader in [&mut first, &mut Reader::new(vec![manifests.clone()], &state)] {
        assert_eq!(read(reader), (1, false), "while the agent runs, and after a restart");
        let problem = &reader.read().manifests.problems[0];
        assert!(problem.contains("is empty and not the directory of before"), "{problem}");
    }
    fs::write(manifests.join("none.yaml"), "").unwrap();
    assert_eq!(read(&mut first), (0, true), "somebody means it");
}

#[test] // rule 44
fn emptied_directory_deletes_its_objects() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("cam.yaml"), CAM).unwrap();
    let mut reader = reader(directory.path());
    assert_eq!(names(&reader.read().manifests).len(), 1);
    fs::remove_file(directory.path().join("cam.yaml")).unwrap();
    assert_eq!(names(&reader.read().manifests), [""; 0]);
}

#[test]
fn broker_spec_is_remarked_on() {
    let directory = tempfile::tempdir().unwrap();
    let brokers = "  brokerSpec: {brokerPodSpec: {containers: []}}\n";
    let cam = CAM.replace("spec: {discoveryHandler: {name: udev}}\n", "spec:\n  discoveryHandler: {name: udev}\n");
    fs::write(directory.path().join("cam.yaml"), cam + brokers).unwrap();
    let read = reader(directory.path()).read().manifests;
    assert!(read.complete);
    assert!(read.problems[0].contains("local mode runs no brokers"), "{:?}", read.problems);
}

#[test]
fn emptied_file_keeps_its_objects() {
    let directory = tempfile::tempdir().unwrap();
    let cam = directory.path().join("cam.yaml");
    fs::write(&cam, CAM).unwrap();
    let mut reader = reader(directory.path());
    reader.read();
    for text in ["", "\n", "# nothing yet\n", "---\n"] {
        fs::write(&cam, text).unwrap();
        let emptied = reader.read().manifests;
        assert_eq!((names(&emptied), emptied.complete), (vec!["default/cam".to_owned()], false), "{text:?}");
    }
    fs::remove_file(&cam).unwrap();
    assert_eq!(names(&reader.read().manifests), [""; 0]);
}

#[test]
fn file_broken_while_stopped_keeps_objects_and_no_secret() {
    let directory = tempfile::tempdir().unwrap();
    let cam = directory.path().join("cam.yaml");
    let secret = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: key}\nstringData: {key: hunter2}\n";
    fs::write(&cam, format!("{CAM}{secret}")).unwrap();
    let before = reader(directory.path()).read().manifests;
    let written = fs::read_to_string(directory.path().join("state/manifests.json")).unwrap();
    assert!(written.contains("\"cam\"") && !written.contains("hunter2"), "{written}");
    for text in ["spec: [", ""] {
        fs::write(&cam, text).unwrap();
        let after = reader(directory.path()).read().manifests;
        assert_eq!((&after.configurations, after.complete), (&before.configurations, false), "{text:?}");
    }
    fs::remove_file(&cam).unwrap();
    let after = reader(directory.path()).read().manifests;
    assert_eq!((names(&after), after.complete), (vec![], true), "who deletes it means it");
}

#[test]
fn first_file_keeps_a_duplicate_object() {
    let directory = tempfile::tempdir().unwrap();
    let [early, cam, late] = ["a.yaml", "cam.yaml", "z.yaml"].map(|name| directory.path().join(name));
    fs::write(&cam, CAM).unwrap();
    let mut reader = reader(directory.path());
    let before = reader.read().manifests;
    for other in [&early, &late] {
        let same = CAM.replace("udev", "onvif").replace("name: cam", "name: cam, namespace: default");
        fs::write(other, same).unwrap();
        let now = reader.read().manifests;
        assert_eq!((&now.configurations, now.complete), (&before.configurations, false));
        let (line, exists) =
            (format!("{}:3: ", other.display()), format!("Configuration 'cam' already exists in {}", cam.display()));
        assert!(now.problems.iter().any(|error| error.starts_with(&line) && error.contains(&exists)), "{now:?}");
    }
    fs::remove_file(&cam).unwrap();
    let next = reader.read().manifests;
    assert_eq!(next.configurations[&Key::new("default", "cam")].handler, "onvif", "the first of the others");
}

/// A path may come before or behind that of the other directory.
#[test]
fn later_directory_wins() {
    let directory = tempfile::tempdir().unwrap();
    for (first, second) in [("a", "b"), ("b", "a")] {
        let both = [first, second].map(|name| directory.path().join(name));
        for (path, handler) in both.iter().zip(["udev", "onvif"]) {
            fs::create_dir_all(path).unwrap();
            fs::write(path.join("cam.yaml"), CAM.replace("udev", handler)).unwrap();
        }
        let manifests = Reader::new(both.into(), directory.path()).read().manifests;
        assert!(manifests.complete);
        assert_eq!(manifests.configurations[&Key::new("default", "cam")].handler, "onvif");
    }
}

#[test]
fn generations_count_changes_and_uids_are_stable() {
    let directory = tempfile::tempdir().unwrap();
    let cam = directory.path().join("cam.yaml");
    fs::write(&cam, CAM).unwrap();
    let mut reader = reader(directory.path());
    let first = reader.read().manifests;
    assert_eq!(first, reader.read().manifests, "reading again changes nothing");
    fs::write(&cam, CAM.replace("spec: {", "spec: {capacity: 3, ")).unwrap();
    let second = reader.read().manifests;
    let of = |manifests: &Manifests| manifests.configurations[&Key::new("default", "cam")].clone();
    assert_eq!((of(&first).generation, of(&second).generation), (1, 2));
    assert_eq!(of(&first).uid, of(&second).uid);
    assert_eq!(of(&second).capacity, 3);
}

#[test] // rule 29
fn first_of_two_configurations_is_older_after_a_restart_too() {
    let directory = tempfile::tempdir().unwrap();
    let in_namespace = |namespace: &str| {
        let text = CAM.replace("name: cam", &format!("name: cam, namespace: {namespace}"));
        fs::write(directory.path().join(format!("{namespace}.yaml")), text).unwrap();
    };
    let first = |reader: &mut Reader| {
        let manifests = reader.read().manifests;
        manifests.configurations.values().min_by_key(|of| of.created).unwrap().key.namespace.clone()
    };
    for (older, younger) in [("a", "b"), ("d", "c")] {
        in_namespace(older);
        let mut reading = reader(directory.path());
        reading.read();
        std::thread::sleep(std::time::Duration::from_millis(1100)); // the times have seconds
        in_namespace(younger);
        assert_eq!(first(&mut reading), older);
        assert_eq!(first(&mut reader(directory.path())), older);
        for name in [older, younger] {
            fs::remove_file(directory.path().join(format!("{name}.yaml"))).unwrap();
        }
        reading.read();
    }
}

#[test] // threat 14
fn broken_files_are_shown_briefly_and_forge_no_lines() {
    let directory = tempfile::tempdir().unwrap();
    for number in 0..300 {
        fs::write(directory.path().join(format!("a{number:03}\nERROR forged.yaml")), "spec: [").unwrap();
    }
    fs::write(directory.path().join("cam.yaml"), CAM).unwrap();
    let read = reader(directory.path()).read().manifests;
    assert_eq!((names(&read), read.complete), (vec!["default/cam".to_owned()], false));
    assert_eq!(read.problems.len(), MAX_SHOWN + 1);
    assert_eq!(read.problems[MAX_SHOWN], "290 more messages of this kind about manifests");
    assert!(read.problems.iter().all(|problem| !problem.contains('\n')), "{:?}", read.problems);
}

#[test]
fn other_files_are_ignored() {
    for (name, expected) in
        [("a.yaml", true), ("a.yml", true), ("a.json", true), (".a.yaml", false), ("a.yaml~", false), ("a.txt", false)]
    {
        assert_eq!(is_manifest(Path::new(name)), expected, "{name}");
    }
}
