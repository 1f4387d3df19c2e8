//! Horizontal bars in groups with labels above, so that long stage names stay readable on a phone.

use super::lines::{SMALL, Swatch, WIDTH, heading, legend, shortened};
use super::scale::{Kind, Scale, Unit};
use super::scene::{Anchor, Paint, Scene};
use super::text;

const BAR: f64 = 13.0;
const GAP: f64 = 2.5;
const LABEL: f64 = 18.0;
const GROUP_GAP: f64 = 9.0;
const LEFT: f64 = 10.0;

#[derive(Clone, Debug)]
pub struct Bar {
    /// Index of the chart's series that the bar belongs to.
    pub series: usize,
    pub value: f64,
    /// Half the width of its confidence interval.
    pub error: Option<f64>,
    /// The reason why there is no bar.
    pub missing: Option<String>,
}

#[derive(Clone, Debug)]
pub struct BarGroup {
    pub label: String,
    pub bars: Vec<Bar>,
}

#[derive(Clone, Debug)]
pub struct Bars {
    pub title: String,
    pub subtitle: String,
    pub unit: Unit,
    /// Names of the series; a single series needs no legend.
    pub series: Vec<String>,
    pub groups: Vec<BarGroup>,
}

impl Bars {
    pub fn scene(&self) -> Scene {
        let mut scene = Scene::new(WIDTH, &self.title);
        let mut y = heading(&mut scene, &self.title, &self.subtitle);
        if self.series.len() > 1 {
            let entries: Vec<(String, Swatch)> = self
                .series
                .iter()
                .enumerate()
                .map(|(index, name)| (name.clone(), Swatch::Area(index)))
                .collect();
            y = legend(&mut scene, y, &entries);
        }
        let all = || self.groups.iter().flat_map(|group| &group.bars);
        let scale = Scale::over(
            Kind::Linear,
            all().map(|bar| bar.value + bar.error.unwrap_or(0.0)),
        );
        let widest = all()
            .map(|bar| text::width(&self.words(bar), SMALL))
            .fold(0.0, f64::max);
        // Numbers are printed after their bars.
        let length = WIDTH - LEFT - widest - 18.0;
        for group in &self.groups {
            y += LABEL;
            let label = shortened(&group.label, SMALL, WIDTH - 20.0);
            scene.words((LEFT, y - 4.5), &label, SMALL, Paint::Ink, Anchor::Start);
            for bar in &group.bars {
                self.draw(&mut scene, bar, &group.label, y, scale, length);
                y += BAR + GAP;
            }
            y += GROUP_GAP;
        }
        scene.height = y + 4.0;
        scene
    }

    fn draw(&self, scene: &mut Scene, bar: &Bar, label: &str, y: f64, scale: Scale, length: f64) {
        let width = match bar.missing {
            Some(_) => 0.0,
            None => scale.place(bar.value) * length,
        };
        let words = self.words(bar);
        if bar.missing.is_none() {
            let hint = format!("{label}: {words}");
            let paint = Paint::Series(bar.series);
            scene.rectangle((LEFT, y), (width.max(1.0), BAR), paint, 0.85, Some(hint));
        }
        let mut end = LEFT + width;
        if let Some(error) = bar.error.filter(|_| bar.missing.is_none()) {
            let from = LEFT + scale.place((bar.value - error).max(0.0)) * length;
            let to = LEFT + scale.place(bar.value + error) * length;
            let middle = y + BAR / 2.0;
            scene.line((from, middle), (to, middle), Paint::Ink, 1.2);
            for x in [from, to] {
                scene.line((x, middle - 3.5), (x, middle + 3.5), Paint::Ink, 1.2);
            }
            end = end.max(to);
        }
        let at = (end + 6.0, y + BAR - 2.5);
        scene.words(at, &words, SMALL, Paint::Muted, Anchor::Start);
    }

    fn words(&self, bar: &Bar) -> String {
        match (&bar.missing, bar.error) {
            (Some(why), _) => why.clone(),
            (None, Some(error)) => format!(
                "{} ± {}",
                self.unit.words(bar.value),
                self.unit.words(error)
            ),
            (None, None) => self.unit.words(bar.value),
        }
    }
}
