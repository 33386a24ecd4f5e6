//! The picture for documents as one SVG, no script.

use std::fmt::Write;

use plimsoll_speech::Language;

use super::drawing::{Anchor, HEIGHT, Shape, WIDTH, sheet};
use super::html::escape;
use super::scene::PlanPicture;
use super::text::Text;

/// The schedule that trains, over the operators it runs.
pub fn svg(plan: &PlanPicture, language: Language) -> String {
    let sheet = sheet(plan, &Text::of(language));
    let mut out = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, 'Segoe UI', Roboto, 'Noto Sans', sans-serif">
<title>{}</title>
<defs><pattern id="stripes" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="2" height="6" fill="#fff" fill-opacity=".6"/></pattern></defs>
"##,
        escape(&sheet.title)
    );
    for shape in &sheet.shapes {
        put(&mut out, shape);
    }
    out.push_str("</svg>\n");
    out
}

fn put(out: &mut String, shape: &Shape) {
    let _ = match shape {
        Shape::Area { x, y, width, height, fill, opacity } => {
            let opacity = if *opacity < 1.0 { format!(r#" fill-opacity="{opacity}""#) } else { String::new() };
            writeln!(
                out,
                r#"<rect x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{height:.2}" fill="{fill}"{opacity}/>"#
            )
        }
        Shape::Stripes { x, y, width, height } => {
            writeln!(
                out,
                r#"<rect x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{height:.2}" fill="url(#stripes)"/>"#
            )
        }
        Shape::Line { from, to, stroke, width, dashed } => {
            let dashes = if *dashed { r#" stroke-dasharray="7 4""# } else { "" };
            writeln!(
                out,
                r#"<path d="M{:.1} {:.1}L{:.1} {:.1}" stroke="{stroke}" stroke-width="{width}"{dashes}/>"#,
                from.0, from.1, to.0, to.1
            )
        }
        Shape::Words { x, y, text, fill, size, anchor, bold } => {
            let anchor = match anchor {
                Anchor::Start => "",
                Anchor::Middle => r#" text-anchor="middle""#,
                Anchor::End => r#" text-anchor="end""#,
            };
            let weight = if *bold { r#" font-weight="600""# } else { "" };
            writeln!(
                out,
                r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}"{anchor}{weight} fill="{fill}">{}</text>"#,
                escape(text)
            )
        }
    };
}
