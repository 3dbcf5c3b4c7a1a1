//! `ruvllm eval routing`, `embedding` and `full`.

use std::fs;

use serde_json::{Value, json};

use crate::program::{argument, run};

/// A set of two agents; the cases have words that their agents' texts have.
fn small_set() -> Value {
    let agent = |name: &str, keyword: &str, train: [&str; 3]| {
        json!({
            "name": name, "description": name, "keywords": [keyword], "train": train
        })
    };
    let case = |text: &str, agent: &str, not: &str, form: &str, difficulty: &str| {
        json!({
            "text": text, "agent": agent, "not": not, "form": form, "difficulty": difficulty
        })
    };
    json!({
        "agents": [
            agent("cook", "soup", ["Boil the soup slowly", "Bake a loaf of bread", "Fry two eggs in butter"]),
            agent("gardener", "roses", ["Water the roses daily", "Plant a row of beans", "Cut the hedge in spring"])
        ],
        "outside_train": ["The train leaves at nine"],
        "outside_test": ["My tooth hurts"],
        "cases": [
            case("Boil some soup with leeks", "cook", "gardener", "request", "easy"),
            case("How long do I bake a loaf?", "cook", "gardener", "question", "medium"),
            case("The roses look dry", "gardener", "cook", "situation", "medium"),
            case("Cut roses for the soup table", "gardener", "cook", "crossed", "hard")
        ]
    })
}

#[test]
fn routing_and_embeddings_are_measured_on_cases_of_ones_own() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("cases.json");
    fs::write(&data, small_set().to_string()).unwrap();
    let document = run(&["eval", "full", "--data", argument(&data), "--json"]).json();
    assert_eq!((document["agents"].as_u64(), document["cases"].as_u64()), (Some(2), Some(4)));
    let routers = document["routers"].as_array().unwrap();
    let names: Vec<&str> = routers.iter().map(|router| router["router"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["keywords", "embedding", "embedding and keywords", "hashed words", "hashed words and keywords"]
    );
    // By keywords: the first and third are right, the second has none, the fourth has one of each.
    assert_eq!(routers[0]["accuracy"], 0.5);
    assert_eq!(routers[0]["by_agent"]["cook"], json!({"right": 1, "cases": 2}));
    assert_eq!(routers[0]["by_difficulty"]["hard"], json!({"right": 0, "cases": 1}));
    for router in routers {
        assert_eq!(router["top3_accuracy"], 1.0, "there are two agents");
        assert!(router["latency"]["p99_us"].as_f64().unwrap() > 0.0, "{router}");
    }
    let embeddings = document["embeddings"].as_array().unwrap();
    assert_eq!(embeddings[0]["dim"], 512);
    assert!(embeddings.iter().all(|of| of["purity"].as_f64().unwrap() >= 0.5), "{embeddings:?}");

    let routing = run(&["eval", "routing", "--data", argument(&data), "--json"]).json();
    assert_eq!(routing["routers"][1]["accuracy"], routers[1]["accuracy"]);
    let table = run(&["eval", "embedding", "--data", argument(&data)]);
    assert!(table.text().contains("hashed words") && table.text().contains("silhouette"), "{}", table.text());
}

#[test]
fn sets_that_teach_what_they_test_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("cases.json");
    let mut set = small_set();
    set["cases"][0]["text"] = "Bake a loaf of bread".into();
    fs::write(&data, set.to_string()).unwrap();
    run(&["eval", "routing", "--data", argument(&data)])
        .fails_with(1, &["cases.json: data set", "occurs twice"]);
    fs::write(&data, "[]").unwrap();
    run(&["eval", "full", "--data", argument(&data)]).fails_with(1, &["cases.json: data set", "--help"]);
    run(&["eval", "embedding", "--data", "absent.json"]).fails_with(1, &["absent.json"]);
}
