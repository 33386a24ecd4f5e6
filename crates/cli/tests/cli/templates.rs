//! The chat template of a run.

use crate::support::{World, refused_set};

const CONVERSATION: &str =
    r#"{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}"#;

fn train(world: &World, out: &str, template: &str) {
    world.run(&["train", "run.yaml", "--quiet", "--out", out, "--set", &format!("data.template={template}")]).ok();
}

#[test]
fn a_template_decides_what_is_learnt_and_stays_with_the_model() {
    let world = World::new();
    world.write("train.jsonl", format!("{CONVERSATION}\n").repeat(8));
    world.edit("run.yaml", "max_length: 32", "max_length: 64");
    world.edit("run.yaml", "micro_batch_tokens: 64", "micro_batch_tokens: 128");
    world.write("my.jinja", "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}");
    for (out, template) in [("auto", "auto"), ("zephyr", "zephyr"), ("mine", "my.jinja")] {
        train(&world, out, template);
    }
    assert_ne!(world.losses("auto"), world.losses("zephyr"));
    assert_ne!(world.losses("zephyr"), world.losses("mine"));
    assert_eq!(world.text("mine/final/chat_template.jinja"), world.text("my.jinja"));
    let written = world.text("zephyr/final/chat_template.jinja");
    assert!(written.contains("'<|' + message.role") && !written.contains("end_of_turn"), "{written}");
    // The trained model's own template is the one it was trained with.
    world.edit("run.yaml", "model: model", "model: zephyr/final");
    train(&world, "own", "auto");
    train(&world, "named", "zephyr");
    assert_eq!(world.losses("own"), world.losses("named"));
}

#[test]
fn the_template_taken_where_there_is_none_stays_with_the_model_too() {
    let world = World::new();
    world.write("train.jsonl", format!("{CONVERSATION}\n").repeat(8));
    world.edit("run.yaml", "max_length: 32", "max_length: 64");
    world.edit("run.yaml", "micro_batch_tokens: 64", "micro_batch_tokens: 128");
    let mut config = world.json("model/tokenizer_config.json");
    config.as_object_mut().unwrap().remove("chat_template");
    world.write("model/tokenizer_config.json", config.to_string());
    train(&world, "bare", "auto");
    assert!(world.text("bare/final/chat_template.jinja").contains("<|im_start|>"));
    world.edit("run.yaml", "model: model", "model: bare/final");
    train(&world, "own", "auto");
    train(&world, "named", "chatml");
    assert_eq!(world.losses("own"), world.losses("named"));
}

#[test]
fn a_template_that_is_not_there_is_refused() {
    let world = World::new();
    world.write("bad.jinja", "{% for %}");
    let known = "auto, default, chatml, llama-3, mistral, zephyr, alpaca, gemma, vicuna, phi-3";
    refused_set(
        &world,
        "data.template=chatlm",
        2,
        &format!(
            "error: --set data.template: unknown chat template `chatlm`\nhint: known are {known}; or give the path of a .jinja file\n"
        ),
    );
    refused_set(
        &world,
        "data.template=gone.jinja",
        2,
        "error: --set data.template: cannot read gone.jinja: No such file or directory (os error 2)\nhint: check the path under `data:`\n",
    );
    let args = ["train", "run.yaml", "--set", "data.template=bad.jinja"];
    let said = world.run(&args);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    let expected = "error: --set data.template: the chat template of bad.jinja cannot be compiled: ";
    assert!(said.stderr.starts_with(expected) && said.stderr.ends_with("hint: correct the template\n"), "{said:?}");
}

#[test]
fn a_template_whose_end_the_tokenizer_does_not_have_is_refused() {
    let world = World::new();
    refused_set(
        &world,
        "data.template=gemma",
        2,
        "error: --set data.template: template gemma ends turns with <end_of_turn>, which is no token of this tokenizer, so the model could not learn to stop\nhint: choose another template, or one of the tokenizer's own family\n",
    );
}

/// What else lies in the model's folder goes with the trained one, without the template that was not used.
#[test]
fn the_rest_of_a_folder_travels() {
    let world = World::new();
    world.write("train.jsonl", format!("{CONVERSATION}\n").repeat(8));
    world.edit("run.yaml", "max_length: 32", "max_length: 64");
    world.edit("run.yaml", "micro_batch_tokens: 64", "micro_batch_tokens: 128");
    world.write("model/generation_config.json", "{\"eos_token_id\": 2}");
    world.write("model/additional_chat_templates/tools.jinja", "{{ tools }}");
    let mut config = world.json("model/tokenizer_config.json");
    config["chat_template"] = "{{ old }}".into();
    world.write("model/tokenizer_config.json", config.to_string());
    train(&world, "out", "chatml");
    for name in ["generation_config.json", "additional_chat_templates/tools.jinja"] {
        assert_eq!(world.text(&format!("out/final/{name}")), world.text(&format!("model/{name}")), "{name}");
    }
    assert!(world.json("out/final/tokenizer_config.json").get("chat_template").is_none());
    assert!(world.text("out/final/chat_template.jinja").contains("<|im_start|>"));
}
