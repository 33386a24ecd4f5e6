//! Plans as pictures: addresses upwards, time to the right, a rectangle for every buffer.

mod columns;
mod courses;
mod drawing;
mod html;
mod letters;
mod png;
mod scene;
mod svg;
mod text;

pub use courses::courses;
pub use html::html;
pub use png::png;
pub use scene::PlanPicture;
pub use svg::svg;

/// Colours of the categories, on light and on dark ground. Neighbours differ in lightness as well as in hue.
pub(crate) const COLOURS: [(&str, &str, &str); 13] = [
    ("weights", "#3f6fb5", "#6f9be0"),
    ("adapters", "#1f9e96", "#3fc4ba"),
    ("gradients", "#e08214", "#f2a244"),
    ("optimizer", "#8656a8", "#b184d2"),
    ("activations", "#5aa63e", "#86c96b"),
    ("loss", "#cf3f4f", "#ee6d7a"),
    ("cache", "#c2549b", "#d77bb8"),
    ("inputs", "#8c6d4f", "#b89775"),
    ("workspace", "#9aa0a8", "#8d949e"),
    ("transfer", "#c2a500", "#e0c63d"),
    ("context", "#5c6470", "#6d7683"),
    ("recorded", "#75697a", "#93869a"),
    ("fragmentation", "#d9dce1", "#3a3f47"),
];
