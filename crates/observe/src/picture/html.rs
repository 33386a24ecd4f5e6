//! The picture as one page that needs nothing else: style, script and data inside.

use plimsoll_speech::Language;
use serde_json::{Value, json};

use super::COLOURS;
use super::scene::PlanPicture;
use super::text::Text;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The page of one plan, or of several side by side.
pub fn html(plans: &[PlanPicture], language: Language) -> String {
    let text = Text::of(language);
    let data: Vec<Value> = plans.iter().map(|plan| plan.to_json()).collect();
    let names: Vec<&str> = plans.iter().map(|plan| plan.name).collect();
    let data = json!({"plans": data, "colours": COLOURS, "text": text});
    let parts = [
        ("{{language}}", text.language.to_owned()),
        ("{{title}}", escape(&format!("{} · {}", text.title, names.join(" | ")))),
        ("{{style}}", STYLE.to_owned()),
        ("{{data}}", script_safe(&data)),
        ("{{script}}", SCRIPT.to_owned()),
    ];
    // In one pass over the page: what is put in is not searched for places again.
    let mut page = String::with_capacity(PAGE.len() + parts.iter().map(|(_, part)| part.len()).sum::<usize>());
    let mut rest = PAGE;
    while let Some(start) = rest.find("{{") {
        let (before, from) = rest.split_at(start);
        page.push_str(before);
        let (place, part) = parts.iter().find(|(place, _)| from.starts_with(place)).expect("a known place");
        page.push_str(part);
        rest = &from[place.len()..];
    }
    page.push_str(rest);
    page
}

/// Text as it stands between tags.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// JSON that no browser takes for the end of its script.
fn script_safe(value: &Value) -> String {
    value.to_string().replace('<', "\\u003c")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_ends_the_script() {
        let text = script_safe(&json!({"name": "</script><script>alert(1)</script>"}));
        assert!(!text.contains('<'));
        let back: Value = serde_json::from_str(&text).expect("still JSON");
        assert_eq!(back["name"], "</script><script>alert(1)</script>");
    }
}
