-- The health of an alustan.io/Terraform, for Argo CD (resource.customizations.health.alustan.io_Terraform).
-- It says the same as kstatus does, and Suspended where a person is waited for.
local health = { status = "Progressing", message = "the operator has not looked at it yet" }
local status = obj.status
if status == nil or status.conditions == nil then
  return health
end
if status.message ~= nil and status.message ~= "" then
  health.message = status.message
end

local conditions = {}
for _, condition in ipairs(status.conditions) do
  conditions[condition.type] = condition
end
local function is_true(kind)
  return conditions[kind] ~= nil and conditions[kind].status == "True"
end
local reason = conditions["Ready"] ~= nil and conditions["Ready"].reason or ""

if obj.metadata.deletionTimestamp == nil and status.observedGeneration ~= obj.metadata.generation then
  health.message = "the operator has not looked at the present spec yet"
elseif reason == "Suspended" or reason == "AwaitingApproval" then
  health.status = "Suspended"
elseif is_true("Stalled") then
  health.status = "Degraded"
elseif is_true("Ready") and not is_true("Reconciling") then
  health.status = "Healthy"
end
return health
