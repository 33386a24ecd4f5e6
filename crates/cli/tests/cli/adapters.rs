//! Training on from an adapter that is there.

use crate::support::World;

const LORA: &str = "method={lora: {r: 4, alpha: 8, targets: [q_proj, v_proj]}}";

fn train<'a>(out: &'a str, method: &'a str) -> [&'a str; 9] {
    ["train", "run.yaml", "--out", out, "--quiet", "--set", method, "--steps", "2"]
}

#[test]
fn adapters_of_another_kind_are_refused_by_name() {
    let world = World::new();
    world.run(&train("first", LORA)).ok();
    let config = world.text("first/final/adapter_config.json");
    let on = |method: &str, from: &str, to: &str| {
        assert!(config.contains(from), "{from} is not in {config}");
        world.write("first/final/adapter_config.json", config.replace(from, to));
        let said = world.run(&[&train("second", method)[..], &["--set", "init_from=first/final"]].concat());
        world.write("first/final/adapter_config.json", &config);
        said
    };
    for (method, message) in [
        (LORA.replace("r: 4", "r: 8"), "its `r` is 4, that of this run 8"),
        (LORA.replace("alpha: 8", "alpha: 4"), "it is scaled by 2 (alpha 8), the adapters of this run by 1"),
        (LORA.replace("v_proj", "k_proj"), "this run adapts `k_proj`, it does not"),
        (LORA.replace(", v_proj", ""), "it adapts `v_proj`, this run does not"),
    ] {
        let said = on(&method, "LORA", "LORA");
        let start = "error: --set init_from: the adapter in first/final is not of this run: ";
        assert_eq!(said.stderr.lines().next(), Some(&*format!("{start}{message}")));
        assert!(said.stderr.contains("hint: set method.lora"), "{}", said.stderr);
        assert_eq!(said.code, Some(2));
    }
    for (from, to, message) in [
        ("\"bias\": \"none\"", "\"bias\": \"lora_only\"", "`bias` is \"lora_only\"; only \"none\" is supported"),
        ("\"use_rslora\"", "\"use_dora\": true, \"use_rslora\"", "`use_dora` is true, which is not supported"),
        ("\"use_rslora\"", "\"alpha_pattern\": {\"q_proj\": 3}, \"use_rslora\"", "`alpha_pattern` gives layers"),
        ("\"LORA\"", "\"IA3\"", "`peft_type` is IA3; only LORA is supported"),
    ] {
        let said = on(LORA, from, to);
        assert!(
            said.stderr.starts_with(&format!("error: first/final/adapter_config.json: {message}")),
            "{}",
            said.stderr
        );
        assert_eq!(said.code, Some(4));
    }
    // As PEFT writes it: whole paths, and keys that say nothing.
    let paths =
        "\"target_modules\": [\"model.layers.0.self_attn.q_proj\", \"model.layers.1.self_attn.v_proj\"], \"was\"";
    let said = on(LORA, "\"target_modules\"", paths).ok();
    assert_eq!(said.stderr, "");
    assert!(world.path("second/final/adapter_model.safetensors").exists());
}
