// SPDX-License-Identifier: BSD-3-Clause
// Draws the curves of each plot over the axes that the page has, and shows the values under the pointer in
// the legend.
'use strict';

/** The place of a value on an axis, 0 at its low end and 1 at its high one. */
function place(value, [low, high], log) {
  return log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
}

function append(parent, name, attributes) {
  const element = document.createElementNS(parent.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent.append(element);
}

/** The points of a curve in a square of 1000 by 1000. Where nothing can be drawn, y is null. */
function pointsOf({steps, values}, {x, y, log}) {
  return steps.map((step, i) => {
    const value = values[i], canBeDrawn = value !== null && (!log || value > 0);
    const down = canBeDrawn ? 1000 * (1 - place(value, y, log)) : null;
    return {step, value, x: 1000 * place(step, x, false), y: down && Math.max(-1e5, Math.min(1e5, down))};
  });
}

function drawPath(frame, points, attributes) {
  let d = '', isDown = false;
  for (const {x, y} of points) {
    if (y !== null) d += `${isDown ? 'L' : 'M'}${x.toFixed(2)} ${y.toFixed(1)}`;
    isDown = y !== null;
  }
  append(frame, 'path', {...attributes, d});
}

for (const svg of document.querySelectorAll('svg.plot')) {
  const card = svg.closest('section'), cursor = svg.querySelector('.cursor');
  const data = JSON.parse(card.querySelector('script').textContent);
  const legend = card.querySelectorAll('.keys b');  // one for each curve
  const shown = [];
  data.curves.forEach(({color, look, ...curve}, i) => {
    const points = pointsOf(curve, data), drawn = points.filter(({y}) => y !== null);
    drawPath(
        svg.querySelector('.frame-clip'), points, {class: `${look === 'thin' ? 'thin' : 'line'} c${color}`});
    // A path of one point draws nothing.
    if (points.length === 1 || look === 'dots' && points.length <= 60) {
      for (const {x, y} of drawn.filter(({y}) => y >= 0)) {
        append(
            svg.querySelector('.dots'), 'circle',
            {cx: `${x / 10}%`, cy: `${y / 10}%`, r: 3.5, class: `c${color}`});
      }
    }
    if (drawn.length > 0) shown.push({points: drawn, out: legend[i]});
  });
  if (shown.length === 0) continue;

  svg.addEventListener('pointermove', event => {
    const box = svg.querySelector('.hit').getBoundingClientRect();
    const pointer = 1000 * (event.clientX - box.left) / box.width;
    const nearest = points =>
        points.reduce((a, b) => Math.abs(a.x - pointer) > Math.abs(b.x - pointer) ? b : a);
    for (const {points, out} of shown) out.textContent = ` ${Number(nearest(points).value.toPrecision(4))}`;
    const {step, x} = nearest(shown[0].points);
    card.querySelector('b.at').textContent = `step ${step.toLocaleString('en')}`;
    cursor.setAttribute('x1', `${x / 10}%`);
    cursor.setAttribute('x2', `${x / 10}%`);
    cursor.style.visibility = 'visible';
  });
  svg.addEventListener('pointerleave', () => {
    for (const out of card.querySelectorAll('h2 b, .keys b')) out.textContent = '';
    cursor.style.visibility = 'hidden';
  });
}
